#!/usr/bin/env bash
# Follows docs/how-to/deployment.md on one machine: a server and three sites as processes of their own, with mutual TLS.
# Usage: loopback.sh DIRECTORY. The directory must be new or empty; kits, logs and the run stay in it. Takes about two
# minutes, leaves no process behind, and exits with an error if anything is not as the page says.
set -euo pipefail

page=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)/deployment.md
[ $# -eq 1 ] || { echo "usage: $0 DIRECTORY" >&2; exit 2; }
mkdir -p "$1"
cd "$1"
[ -z "$(ls -A)" ] || { echo "$1 is not empty" >&2; exit 2; }
work=$(pwd -P)
export OMP_NUM_THREADS=1 # four parties share this machine
deadline=$((SECONDS + ${LOOPBACK_SECONDS:-420}))

say() { printf '\n== %s\n' "$*"; }
fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }

# wait_until SECONDS WHAT COMMAND...: run the command until it succeeds.
wait_until() {
  local until=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    [ "$SECONDS" -lt "$until" ] && [ "$SECONDS" -lt "$deadline" ] || fail "not so in time: $what"
    sleep 0.5
  done
}

# Every process of a kit, job processes included, has the path of its kit in BILATERAL_KIT (see startup/sub_start.sh).
left_processes() {
  python3 - "$work" "$@" <<'PYTHON'
import os, sys
import psutil

below, kill = sys.argv[1] + "/", "--kill" in sys.argv[2:]
for process in psutil.process_iter():
    try:
        if process.environ().get("BILATERAL_KIT", "").startswith(below) and process.status() != psutil.STATUS_ZOMBIE:
            print(process.pid, " ".join(process.cmdline()))
            if kill:
                process.kill()
    except psutil.Error:
        continue
PYTHON
}

nothing_left() { [ -z "$(left_processes)" ]; }

clean_up() {
  local code=$?
  trap - EXIT INT TERM
  for kit in "$work"/parties/* "$work"/strangers/*; do
    if [ -e "$kit/flare/daemon_pid.fl" ]; then touch "$kit/flare/shutdown.fl"; fi
  done
  for _ in 1 2 3; do left_processes --kill >/dev/null; sleep 0.3; done
  exit "$code"
}
trap clean_up EXIT INT TERM

start() { # KIT
  (
    cd "$1"
    flare/startup/start.sh > start.log 2>&1
  ) </dev/null
}

stop() { # KIT
  (
    cd "$1"
    echo y | flare/startup/stop_fl.sh
  ) >/dev/null
}

ended() { [ ! -e "$1/flare/daemon_pid.fl" ]; }
connected() { [ "$(bilateral sites "$ADMIN_KIT" 2>/dev/null | tr '\n' ' ')" = "$* " ]; }
says() { grep -q -- "$1" "$2" 2>/dev/null; }
registered() { # SITE...
  for site in "$@"; do says "Successfully registered" "parties/$site/start.log" || return 1; done
}

say "2. The plan, and data for it: real ones, cut into three hospitals of different sizes"
mkdir -p site-data
python3 - <<'PYTHON'
import numpy as np
from sklearn.datasets import load_breast_cancer

bunch = load_breast_cancer()
order = np.random.default_rng(0).permutation(len(bunch.target))
x, y = bunch.data[order], bunch.target[order]
x = ((x - x.mean(0)) / x.std(0)).astype(np.float32)
np.savez("site-data/test.npz", x_test=x[:114], y_test=y[:114])
start = 114
for name, size in (("hospital-a", 100), ("hospital-b", 150), ("hospital-c", 205)):
    np.savez(f"site-data/{name}.npz", x_train=x[start : start + size], y_train=y[start : start + size])
    start += size
PYTHON
# The plan is the one of the page, cut out of it.
sed -n '/^```toml$/,/^```$/p' "$page" | sed '/^```/d' > plan.toml
SERVER=localhost
PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')

say "3. The organiser makes the kits"
bilateral deploy plan.toml --server "$SERVER" --port "$PORT" --output federation
mkdir parties strangers
cp -r federation/federation/prod_00/* parties/ # "over a channel that both trust"
rm federation/federation/prod_00/hospital-*/identity.key
ADMIN_KIT="parties/admin@bilateral.org"

say "4. Server and sites: data, then start. Hospital C is late, and two strangers come in its name"
cp site-data/test.npz "parties/$SERVER/data/test.npz"
for site in hospital-a hospital-b hospital-c; do
  cp "site-data/$site.npz" "parties/$site/data/train.npz"
done
# One has a kit of another deployment, one a certificate that it signed itself. Both trust the server, whose certificates
# are no secret: so it is the server that turns them away.
bilateral deploy plan.toml --server "$SERVER" --port "$PORT" --output other-federation --json >/dev/null
cp -r other-federation/federation/prod_00/hospital-c strangers/other-deployment
cp -r other-federation/federation/prod_00/hospital-c strangers/self-signed
python3 - <<'PYTHON'
import datetime, pathlib
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

key = rsa.generate_private_key(65537, 2048)
name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "hospital-c")])
now = datetime.datetime.now(datetime.UTC)
certificate = (
    x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    .not_valid_before(now - datetime.timedelta(hours=1))
    .not_valid_after(now + datetime.timedelta(days=1))
    .sign(key, hashes.SHA256())
    .public_bytes(serialization.Encoding.PEM)
)
startup = pathlib.Path("strangers/self-signed/flare/startup")
(startup / "client.crt").write_bytes(certificate)
(startup / "client.key").write_bytes(
    key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
)
ours = pathlib.Path("parties/hospital-a/flare/startup/rootCA.pem").read_bytes()
for stranger, own in (("other-deployment", None), ("self-signed", certificate)):
    trusted = pathlib.Path(f"strangers/{stranger}/flare/startup/rootCA.pem")
    trusted.write_bytes((own or trusted.read_bytes()) + ours)
PYTHON
for kit in "parties/$SERVER" parties/hospital-a parties/hospital-b strangers/*; do start "$kit"; done
wait_until 120 "hospitals A and B are registered" registered hospital-a hospital-b
wait_until 120 "hospitals A and B are connected" connected hospital-a hospital-b
# Each of them again and again; what the TLS layer says tells them apart.
refused_twice() { [ "$(grep -c "CERTIFICATE_VERIFY_FAILED: $1" "parties/$SERVER/start.log")" -ge 2 ]; }
wait_until 120 "the server turns away the kit of another deployment" refused_twice "unable to get local issuer certificate"
wait_until 120 "the server turns away the self-signed certificate" refused_twice "self.signed certificate"
bilateral sites "$ADMIN_KIT"
connected hospital-a hospital-b || fail "a stranger changed who is connected"
for kit in strangers/*; do
  says "Wait for engine" "$kit/start.log" || fail "$kit has not tried"
  says "Successfully registered" "$kit/start.log" && fail "$kit was registered"
  stop "$kit"
done
says "hospital-c" "parties/$SERVER/flare/log.txt" && fail "the server's log knows hospital C, which has not come yet"
for kit in strangers/*; do wait_until 60 "$kit has ended" ended "$kit"; done
start parties/hospital-c
wait_until 120 "hospital C is registered" registered hospital-c
wait_until 120 "all three are connected" connected hospital-a hospital-b hospital-c

say "5. The administrator runs the plan"
bilateral submit "$ADMIN_KIT" plan.toml --name first
(
  cd "parties/$SERVER"
  bilateral watch runs/first --once
)

say "A plan that no site has accepted"
sed 's/^rounds = .*/rounds = 41/' plan.toml > other-plan.toml
other=$(python3 -c 'from bilateral.engine.plan import load_plan; print(load_plan("other-plan.toml").fingerprint())')
python3 - "parties/$SERVER/bilateral.toml" "$other" <<'PYTHON'
import pathlib, sys

settings = pathlib.Path(sys.argv[1])  # the server's operator agrees, those of the sites do not
settings.write_text(settings.read_text().replace("accepted = [", f'accepted = [\n    "{sys.argv[2]}",'))
PYTHON
bilateral submit "$ADMIN_KIT" other-plan.toml --name other --detach
for site in hospital-a hospital-b hospital-c; do
  wait_until 120 "$site refuses the plan" says "$site cannot take part: .*has not agreed to this plan" "parties/$SERVER/runs/other/events.jsonl"
done
grep round_done "parties/$SERVER/runs/other/events.jsonl" && fail "a round was done with a plan that nobody accepted"

say "A job that brings an id: the name of what FLARE would wipe"
python3 - "$ADMIN_KIT" plan.toml local data spent .. <<'PYTHON' || fail "the server took a job with an id of its sender's"
import json, pathlib, sys, tempfile
from bilateral.engine.flare.admin import Admin
from bilateral.engine.flare.recipe import make_recipe
from bilateral.engine.kind import ROUNDS
from bilateral.engine.plan import load_plan
from bilateral.errors import DeploymentError

kit, plan, *names = sys.argv[1:]
with tempfile.TemporaryDirectory() as folder, Admin(pathlib.Path(kit)) as admin:
    recipe = make_recipe(ROUNDS, load_plan(plan), "named", engine="flare", name="named")
    recipe.export(folder)
    meta = pathlib.Path(folder) / "named" / "meta.json"
    made = json.loads(meta.read_text())
    for name in names:
        meta.write_text(json.dumps({**made, "job_id": name}))
        try:
            admin.submit(meta.parent)
        except DeploymentError as error:
            if "id" in str(error):
                continue
        sys.exit(f"not refused for its id: {name}")
PYTHON
for site in hospital-a hospital-b hospital-c; do
  cmp "site-data/$site.npz" "parties/$site/data/train.npz" || fail "$site lost its data"
  [ -s "parties/$site/identity.key" ] && [ -d "parties/$site/spent" ] || fail "$site lost its key or its budget"
done

say "Stop all parties, in the middle of that run"
for kit in parties/hospital-a parties/hospital-b parties/hospital-c "parties/$SERVER"; do stop "$kit"; done
for kit in parties/hospital-a parties/hospital-b parties/hospital-c "parties/$SERVER"; do
  wait_until 60 "$kit has ended" ended "$kit"
done
wait_until 60 "no process is left" nothing_left

say "Everything was as the page says ($SECONDS seconds)"
