"""
The CustomResourceDefinition, made from the schema of a job and the fields of its status.

``scripts/write-crd`` writes it to ``crds/``. It contains every check that a rule can express, so that the API
server itself refuses a wrong job on ``kubectl apply``, without a webhook.
"""

from typing import Final

import yaml

from dljob.control.situation.status_schema import STATUS
from dljob.core.documents import jobschema
from dljob.kube import names
from dljob.kube.documents import JsonObject
from dljob.operator.jobs.columns import COLUMNS

NAME: Final = f"{names.PLURAL}.{names.GROUP}"
FILE: Final = f"{NAME}.yaml"
_ORIGIN: Final = (
    "# Made by scripts/write-crd from the schema in operator/dljob/core; not to be edited.\n"
)


def definition() -> JsonObject:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": [names.SHORT],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema()},
                    "subresources": {
                        "status": {},
                        # Autoscalers bound the number of GPUs; DLJob decides it within the bound.
                        "scale": {
                            "specReplicasPath": ".spec.gpus.max",
                            "statusReplicasPath": ".status.allocation.gpus",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": list(COLUMNS),
                }
            ],
        },
    }


def schema() -> JsonObject:
    described = jobschema.openapi()
    # The status has one writer, so managed fields are useless in it: with one entry for each field a
    # write of a status costs a tenth more, and a job is a third larger.
    described["properties"]["status"] = {**STATUS.openapi(), "x-kubernetes-map-type": "atomic"}
    return described


def text() -> str:
    """Write the definition as YAML."""
    document = yaml.safe_dump(definition(), sort_keys=False, width=100, allow_unicode=True)
    return f"{_ORIGIN}{document}"
