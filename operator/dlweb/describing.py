"""
The API behind the live page, described for programs: ``scripts/write-web-api`` writes docs/web-api.yaml from here.

Pure.
"""

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]

TEXT: Json = {"type": "string"}
COUNT: Json = {"type": "integer"}
TIME: Json = {"type": "string", "format": "date-time"}
TEXTS: Json = {"type": "array", "items": TEXT}


def refer(schema: str) -> Json:
    """Refer to a schema by its name."""
    return {"$ref": f"#/components/schemas/{schema}"}


def list_of(items: Json) -> Json:
    """Describe an answer that is a list."""
    items = {"type": "array", "items": items}
    return {"type": "object", "required": ["items"], "properties": {"items": items}}


def refuse_as(refusals: Mapping[str, str]) -> Json:
    """Describe the answers to requests that are refused, by their status."""
    return {status: {"$ref": f"#/components/responses/{name}"} for status, name in refusals.items()}


QUEUED: Json = {
    "type": "object",
    "required": ["job", "priority", "submittedAt", "message", "makesRoom"],
    "properties": {
        "job": {**TEXT, "description": "Its name, with its namespace if it has one."},
        "priority": COUNT,
        "submittedAt": {"type": ["string", "null"], "format": "date-time"},
        "message": {**TEXT, "description": "Why it waits, in a sentence."},
        "ahead": {
            **COUNT,
            "description": "The number of waiting jobs that start before it; missing where its turn is not known yet.",
        },
        "expectedStart": {
            **TIME,
            "description": "If running jobs end as predicted and no other job comes; missing where it is not known.",
        },
        "unknownBecause": {**TEXT, "description": "The reason why its start is not known."},
        "makesRoom": {**TEXTS, "description": "The jobs that give up GPUs for it now."},
    },
}

GPU: Json = {
    "type": "object",
    "required": ["index", "state"],
    "properties": {
        "index": {**COUNT, "description": "Its number on the node."},
        "uuid": TEXT,
        "state": {
            "enum": ["free", "reserved", "in use", "unavailable"],
            "description": "`reserved`: decided for a job that does not use it yet.",
        },
        "job": {**TEXT, "description": "The job that has it, or for which it is reserved."},
        "worker": {**COUNT, "description": "The rank of the process that uses it."},
        "since": {**TIME, "description": "The time of the decision that gave it to the job."},
        "reason": {**TEXT, "description": "The reason why it is out of service."},
    },
}

NODE: Json = {
    "type": "object",
    "required": ["name", "gpuType", "gpus"],
    "properties": {
        "name": TEXT,
        "gpuType": TEXT,
        "gpus": {"type": "array", "items": refer("Gpu")},
    },
}

JOB: Json = {
    "type": "object",
    "required": ["metadata"],
    "description": "A DLJob with its status, as `dljob get -o json` prints it.",
    "properties": {
        "apiVersion": TEXT,
        "kind": TEXT,
        "metadata": {"type": "object"},
        "spec": {"type": "object"},
        "status": {"type": "object"},
    },
}

EXPLAINED: Json = {
    "type": "object",
    "required": ["name", "message", "assumptions", "job"],
    "properties": {
        "name": TEXT,
        "message": {**TEXT, "description": "Its present state and the reason, in a sentence."},
        "assumptions": {
            **TEXTS,
            "description": "Assumptions of the policy about it, for lack of knowledge.",
        },
        "job": refer("Job"),
    },
}

ERROR: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {**TEXT, "description": "One sentence with the remedy."}},
}

QUESTION: Json = {
    "type": "object",
    "properties": {
        "policy": {**TEXT, "description": "Another policy decides."},
        "job": {
            **TEXT,
            "description": "The job of which `priority`, `least` and `most` are others.",
        },
        "priority": COUNT,
        "least": {**COUNT, "description": "It runs on this number of GPUs at least."},
        "most": {**COUNT, "description": "It runs on this number of GPUs at most."},
        "another": {**TEXT, "description": "One more job like this one is submitted now."},
        "cordon": {**TEXT, "description": "The GPUs of this node are given to no job any more."},
    },
}

FUTURE: Json = {
    "type": "object",
    "required": ["policy", "jobs"],
    "properties": {
        "policy": TEXT,
        "jobs": {"type": "array", "items": refer("FutureJob")},
    },
}

FUTURE_JOB: Json = {
    "type": "object",
    "required": ["job", "gpus", "endsInSeconds", "spans"],
    "properties": {
        "job": TEXT,
        "gpus": {**COUNT, "description": "GPUs that it has after the first decision."},
        "endsInSeconds": {"type": ["number", "null"], "description": "`null`: it would never end."},
        "spans": {
            "type": "array",
            "items": {"type": "number"},
            "description": "Begin and end in seconds from now, and GPUs; three numbers for each span.",
        },
    },
}

FUTURES: Json = {
    "type": "object",
    "required": ["notes", "futures"],
    "properties": {
        "notes": {**TEXTS, "description": "Assumptions, for lack of knowledge."},
        "futures": {
            "type": "array",
            "items": refer("Future"),
            "description": "As it is, and as it would be.",
        },
    },
}

ASKING: Json = {
    "type": "object",
    "required": ["allowed", "reason"],
    "properties": {
        "allowed": {
            "type": "boolean",
            "description": "On a cluster: whether the user may list DLJobs in all namespaces, and nodes.",
        },
        "reason": {**TEXT, "description": "The reason why not, with the remedy; else empty."},
    },
}

SCHEMAS = {
    "Asking": ASKING,
    "Question": QUESTION,
    "Futures": FUTURES,
    "Future": FUTURE,
    "FutureJob": FUTURE_JOB,
    "Queued": QUEUED,
    "Gpu": GPU,
    "Node": NODE,
    "Job": JOB,
    "Explained": EXPLAINED,
    "Error": ERROR,
}

SINCE: Json = {
    "name": "since",
    "in": "query",
    "description": "Seconds since 1970; lines before it tell only how things were then.",
    "schema": {"type": "number", "minimum": 0, "default": 0},
}

NAME: Json = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "The name of a job, with its namespace and a slash before it if it has one.",
    "schema": TEXT,
}


def describe_paths() -> Json:
    """Describe each path."""
    return {
        "/api/v1/record": _get(
            "The record of what happened, as JSON lines; record.md has its fields.",
            "application/jsonl",
            TEXT,
            SINCE,
        ),
        "/api/v1/usage.csv": _get("Where GPU time went, by namespace.", "text/csv", TEXT),
        "/api/v1/jobs": _get("All jobs.", "application/json", list_of(refer("Job"))),
        "/api/v1/jobs/{name}": _get(
            "One job, and why it does what it does.", "application/json", refer("Explained"), NAME
        ),
        "/api/v1/queue": _get(
            "The jobs that wait, in the order of their turns.",
            "application/json",
            list_of(refer("Queued")),
        ),
        "/api/v1/nodes": _get(
            "Every GPU, by its node.", "application/json", list_of(refer("Node"))
        ),
        "/api/v1/policies": _get("The names of all policies.", "application/json", list_of(TEXT)),
        "/api/v1/what-if": {
            **_get(
                "Whether futures are played for this viewer.", "application/json", refer("Asking")
            ),
            "post": WHAT_IF,
        },
        "/api/v1/page": _get(
            "The data of the page. It changes with the page; programs had better take the record.",
            "application/json",
            {"type": "object"},
        ),
    }


def _get(summary: str, content: str, schema: Json, *parameters: Json) -> Json:
    refusals = {"400": "BadRequest"} if SINCE in parameters else {}
    refusals |= {"401": "Unauthorized", "403": "Forbidden"}
    refusals |= {"404": "NotFound"} if NAME in parameters else {}
    refusals |= {"503": "Away"}
    return {
        "get": {
            "summary": summary,
            **({"parameters": list(parameters)} if parameters else {}),
            "responses": {
                "200": {
                    "description": "With an `ETag`; the answer to `If-None-Match` with it is 304 while nothing is new.",
                    "content": {content: {"schema": schema}},
                },
                "304": {"description": "Nothing is new."},
                **refuse_as(refusals),
            },
        }
    }


WHAT_IF: Json = {
    "summary": "Play two futures of all jobs: as it is, and with something different. Nothing is changed.",
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": refer("Question")}},
    },
    "responses": {
        "200": {
            "description": "Both futures, by the scheduler itself.",
            "content": {"application/json": {"schema": refer("Futures")}},
        },
        **refuse_as(
            {
                "400": "BadRequest",
                "401": "Unauthorized",
                "403": "Forbidden",
                "429": "Busy",
                "503": "Away",
                "504": "TooLong",
            }
        ),
    },
}

REFUSALS = {
    "Busy": "Another question is being answered; on a cluster a user has one at a time, and all users two.",
    "TooLong": "The answer takes too long, or too much memory.",
    "BadRequest": "A parameter is wrong.",
    "Unauthorized": "The token is missing or wrong.",
    "Forbidden": "The header `Host` is no address of this server, or the user may not see it.",
    "NotFound": "There is no such job.",
    "Away": "The controller does not answer.",
}


def describe() -> Json:
    """Describe all of it, in the form of OpenAPI 3.1."""
    error = {"application/json": {"schema": refer("Error")}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "DLJob page",
            "version": "v1",
            "summary": "The API behind the page, on one machine (`dljob up --web`) and on a cluster (`web.enabled`).",
            "description": "Each request has the header `Authorization: Bearer TOKEN`. On one machine that is the token"
            " of the address that `dljob up --web` has printed. On a cluster it is a token of the user for the API"
            " server, and answers have the jobs that the user may see; `what-if` answers users who see all of them. Nothing can be"
            " changed here. A reader ignores fields that it does not know.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}],
        "paths": describe_paths(),
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {
                name: {"description": description, "content": error}
                for name, description in REFUSALS.items()
            },
            "schemas": SCHEMAS,
        },
    }
