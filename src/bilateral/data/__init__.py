"""Datasets, how they are dealt to clients, and augmentation.

load_dataset("heart-disease", data_dir)  ->  Dataset(train: Split, test: Split)
partition(dataset.train, "site", None, randomness)  ->  [ClientShare(name, indices), ...]
"""

from bilateral.data.augment import random_flip_crop
from bilateral.data.dataset import Dataset, Split, validate
from bilateral.data.partition import (
    PARTITION_KINDS,
    ClientShare,
    partition,
    partition_by_site,
    partition_dirichlet,
    partition_iid,
)
from bilateral.data.registry import dataset_names, load_dataset
from bilateral.data.task import Task

__all__ = [
    "PARTITION_KINDS",
    "ClientShare",
    "Dataset",
    "Split",
    "Task",
    "dataset_names",
    "load_dataset",
    "partition",
    "partition_by_site",
    "partition_dirichlet",
    "partition_iid",
    "random_flip_crop",
    "validate",
]
