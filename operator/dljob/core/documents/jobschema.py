"""
A DLJob as a document: metadata, spec and status put together to one schema.

:data:`RUNNABLE` is the schema of jobs that run for real, and the source of the custom resource.
:data:`SIMULATED` does not require a pod template, which a simulation does not use. The fields are in
:mod:`dljob.core.documents.jobfields` and :mod:`dljob.core.documents.podfields`. :mod:`dljob.core.documents.jobfile` uses both.
"""

import json
from typing import Final

from dljob.core import forms
from dljob.core.documents import podfields
from dljob.core.documents.jobfields import FIELDS
from dljob.core.documents.rules import jobrules
from dljob.core.model import Phase
from dljob_wire.checkpoints import FOLDER
from dljob_wire.kinds import Foreign, Json, OneOf, Record, Text
from dljob_wire.problems import listed

API_VERSION: Final = "dljob.io/v1alpha1"
KIND: Final = "DLJob"

OUR_ANNOTATIONS: Final = "dljob.io/"
SUBMIT_AT: Final = "dljob.io/submit-at"
WORKING_DIRECTORY: Final = "dljob.io/working-directory"
USER_LABEL: Final = "dljob.io/user"


def _spec(*, runs: bool) -> Record:
    return Record(
        description="The specification of the job.",
        required=True,
        remedy="say what to run, beginning with gpus and training",
        rules=jobrules.SPEC_RULES,
        fields={
            **FIELDS,
            "auxiliaries": podfields.auxiliaries(runs=runs),
            "template": podfields.template(
                "The pod that trains, as in any other workload. Its container named trainer gets"
                " the GPUs and is supervised; the rest of it is used as it is.",
                trains=True,
                required=runs,
            ),
        },
    )


_KEPT_BY_KUBERNETES: Final = {
    name: Foreign(description="Kept by Kubernetes.")
    for name in (
        *("creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers"),
        *("generateName", "generation", "managedFields", "ownerReferences", "resourceVersion"),
        *("selfLink", "uid"),
    )
}

NAME: Final = Text(
    description="The name of the job, also of its pods.",
    required=True,
    remedy="give the job a name, such as resnet18-imagenet",
    max_length=253,
    form=forms.LABEL,
)


def _metadata() -> Record:
    return Record(
        description="The name of the job and what else is attached to it.",
        required=True,
        remedy="give the job a name: metadata: {name: resnet18-imagenet}",
        fields={
            "name": NAME,
            "namespace": Text(
                description="The namespace that the job belongs to.",
                max_length=253,
                form=forms.LABEL,
            ),
            "labels": podfields.labels("Names by which jobs are selected."),
            "annotations": podfields.annotations(
                "Notes to the job, for people and programs.",
                own=OUR_ANNOTATIONS,
                known={
                    SUBMIT_AT: Text(
                        description="In a simulation: when the job is submitted, in seconds.",
                        max_length=32,
                        form=forms.SECONDS,
                    ),
                    WORKING_DIRECTORY: Text(
                        description=(
                            "On one machine: where the relative paths of the job begin; the folder"
                            " of the submission if left out."
                        ),
                        max_length=4096,
                        form=FOLDER,
                    ),
                },
            ),
            **_KEPT_BY_KUBERNETES,
        },
    )


def build(*, runs: bool) -> Record:
    """Build the schema of a document; where it ``runs`` for real, it must have a pod template."""
    return Record(
        description=(
            "A training job that can run on several numbers of GPUs. DLJob gives it GPUs when it"
            " arrives, takes some away when others profit more from them, and gives more when they"
            " are idle."
        ),
        fields={
            "apiVersion": OneOf(
                (API_VERSION,),
                description="The version of this schema.",
                required=True,
                remedy=f"write apiVersion: {API_VERSION}",
            ),
            "kind": OneOf(
                (KIND,),
                description="The kind of the document.",
                required=True,
                remedy=f"write kind: {KIND}",
            ),
            "metadata": _metadata(),
            "spec": _spec(runs=runs),
            "status": Record(
                description="The status of the job. Only DLJob writes it.",
                is_open=True,
                fields={
                    "phase": OneOf(
                        tuple(phase.value for phase in Phase),
                        description="The phase of the job.",
                    )
                },
            ),
        },
    )


SIMULATED: Final = build(runs=False)
RUNNABLE: Final = build(runs=True)


FIXED_FIELDS: Final = {
    name: node.fixed_because for name, node in _spec(runs=True).fields.items() if node.fixed_because
}
"""The fields of spec that may not change while a job runs, and why each may not."""


def openapi() -> Json:
    """
    Describe a DLJob as ``openAPIV3Schema`` of its custom resource.

    Of the metadata, a custom resource may only check the name, in a rule of the root.
    """
    schema = RUNNABLE.openapi()
    schema["properties"]["metadata"] = {"type": "object"}
    schema["x-kubernetes-validations"] = [
        forms.LABEL.validation(".metadata.name"),
        {
            "rule": _is_same("managedBy"),
            "message": "managedBy cannot change, because another controller may have begun with the job;"
            " delete the job and create it again",
            "fieldPath": ".spec",
        },
        _validation_of_changes(),
    ]
    return schema


def _validation_of_changes() -> Json:
    """
    Refuse a change of the spec while the job runs. Only a rule of the root sees both spec and status.

    The API server evaluates the rule at every write. It is one rule, whose first part is true for a write of the
    status, which has a counter of its own and cannot change the spec. With a rule for each field, the rules were
    a third of the cost of a write.
    """
    active = [phase.value for phase in (Phase.INITIALIZED, Phase.RUNNING, Phase.ADJUSTING)]
    is_written = (
        "has(self.status.revision) && (!has(oldSelf.status) || !has(oldSelf.status.revision)"
        " || self.status.revision != oldSelf.status.revision)"
    )
    *others, last = FIXED_FIELDS
    first_changed = "".join(f"!{_is_same(name)} ? {_why_fixed(name)} : " for name in others)
    return {
        "rule": (
            f"!has(self.status) || ({is_written}) || !has(self.status.phase)"
            f" || !(self.status.phase in {active})"
            f" || ({' && '.join(map(_is_same, FIXED_FIELDS))})"
        ),
        "message": f"{listed(tuple(FIXED_FIELDS), 'and')} cannot change while the job runs",
        "messageExpression": f"{first_changed}{_why_fixed(last)}",
        "fieldPath": ".spec",
    }


def _is_same(field: str) -> str:
    mine, theirs = f"self.spec.{field}", f"oldSelf.spec.{field}"
    return f"(has({mine}) == has({theirs}) && (!has({mine}) || {mine} == {theirs}))"


def _why_fixed(field: str) -> str:
    """Write the sentence as a string of the Common Expression Language, which has the strings of JSON."""
    return json.dumps(
        f"{field} cannot change while the job runs, because {FIXED_FIELDS[field]};"
        " change it back, or cancel the job and submit it again"
    )
