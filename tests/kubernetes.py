"""Checks manifests of Kubernetes, JobSet and Kubeflow Trainer; `tests/kubernetes` installs what it needs."""

import copy
import sys

import kubernetes_validate
import yaml
from kubeflow_trainer_api import models

VERSION = "1.37"
MODELS = {
    "JobSet": models.JobsetV1alpha2JobSet,
    "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
    "TrainJob": models.TrainerV1alpha1TrainJob,
}


def unknown_fields(given, known, path=""):
    """The paths of what a model has left out: it drops a field that it does not know."""
    if isinstance(given, dict):
        for key, value in given.items():
            if not isinstance(known, dict) or key not in known:
                yield f"{path}.{key}"
            else:
                yield from unknown_fields(value, known[key], f"{path}.{key}")
    elif isinstance(given, list):
        for at, value in enumerate(given):
            yield from unknown_fields(value, known[at], f"{path}[{at}]")


def jobs_in(resource):
    """The Jobs that the controller of a JobSet makes, as resources of their own."""
    spec = resource["spec"]
    if resource["kind"] == "TrainingRuntime":
        spec = spec["template"]["spec"]
    for part in spec.get("replicatedJobs", []):
        metadata = {**part["template"].get("metadata", {}), "name": part["name"]}
        yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": part["template"]["spec"]}


def check(resource):
    """Raises an error that names what is wrong."""
    model = MODELS.get(resource["kind"])
    if model is None:
        kubernetes_validate.validate(resource, VERSION, strict=True)
        return
    unknown = list(unknown_fields(resource, model.from_dict(resource).to_dict()))
    if unknown:
        raise ValueError(f"unknown fields: {', '.join(unknown)}")
    for job in jobs_in(resource):
        kubernetes_validate.validate(job, VERSION, strict=True)


def check_finds_mistakes(resource):
    """A check that finds no wrong field, and no wrong type, is worth nothing."""
    unknown = copy.deepcopy(resource)
    unknown["spec"]["noSuchField"] = 1
    mistyped = copy.deepcopy(resource)
    mistyped["metadata"]["name"] = ["a list"]
    for wrong in [unknown, mistyped]:
        try:
            check(wrong)
        except Exception:
            continue
        raise AssertionError(f"a mistake in {resource['kind']} is not found: {wrong}")


failed = False
for path in sys.argv[1:]:
    with open(path) as file:
        resources = list(yaml.safe_load_all(file))
    for resource in resources:
        what = f"{path}: {resource['kind']} {resource['metadata']['name']}"
        try:
            check(resource)
            check_finds_mistakes(resource)
            print(f"{what}: valid")
        except Exception as error:
            failed = True
            print(f"{what}: {error}", file=sys.stderr)
sys.exit(failed)
