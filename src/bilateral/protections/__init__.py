"""Protections: each is one folder, with its settings, traits, refused mixes, vocabulary, guarantee and both its sides.

    fedavg/ masks/ perturbation/ sealed/      what a plan's `protection` names: what clients are sent, and upload
    gaussian/ ppdl/ spn/ dbcl/                baselines of the papers: FedSGD with noise, or on sketches
    ckks/ tp_smc/ hybrid_alpha/ pile/         baselines that sum ciphertexts
    sound/ published/ mp_cdp/ mp_dp_naive/    what its `noise.mechanism` names: noise on top of that

`ladder` has the first four in a table: who sees what, and at what cost. Nobody else compares their names: a plan's
strings are resolved here (`plan.chosen`, `plan.traits`). One from outside of the package is added by `register`, or by
an entry point of the group `bilateral.protections`.
"""

from bilateral.protections.ckks.protection import Ckks
from bilateral.protections.dbcl.protection import Dbcl
from bilateral.protections.fedavg.protection import FedSgd
from bilateral.protections.gaussian.protection import Gaussian
from bilateral.protections.hybrid_alpha.protection import HybridAlpha
from bilateral.protections.masks.protection import Masks
from bilateral.protections.mp_cdp.protection import MpCdp
from bilateral.protections.mp_dp_naive.protection import MpDpNaive
from bilateral.protections.perturbation.protection import Perturbation
from bilateral.protections.pile.protection import Pile
from bilateral.protections.ppdl.protection import Ppdl
from bilateral.protections.published.protection import Published
from bilateral.protections.registry import register
from bilateral.protections.sealed.protection import Sealed
from bilateral.protections.sound.protection import Sound
from bilateral.protections.spn.protection import Spn
from bilateral.protections.tp_smc.protection import TpSmc

for _one in (
    Perturbation(),
    FedSgd(),
    Masks(),
    Sealed(),
    Gaussian(),
    Ppdl(),
    Spn(),
    Dbcl(),
    Ckks(),
    TpSmc(),
    HybridAlpha(),
    Pile(),
    Sound(),
    Published(),
    MpCdp(),
    MpDpNaive(),
):  # as errors and help list them
    register(_one)
