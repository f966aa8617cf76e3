"""Pods follow the user's template, and lose nothing of it."""

import copy
import json
from typing import Any

import pytest
import yaml

from dljob.control.situation.status import Booking
from dljob.core.documents import jobfile
from dljob.core.model import NodeName, Role
from dljob.kube import names
from dljob.operator.podspecs import building
from dljob.operator.podspecs.building import make_trainer
from dljob.operator.podspecs.podsettings import GpuAccess, PodSettings
from dljob_wire.problems import WrongDocument
from dljob_wire.training import read_training

JOB = """
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {name: resnet, namespace: lab, uid: 5D0E-11}
spec:
  gpus: {options: [1, 2, 4]}
  framework: pytorch
  training: {iterations: 100}
  progress: {log: 'step (?P<iteration>\\d+)$(x)'}
  checkpoint: {signal: SIGUSR1, confirm: file, path: /ckpt, timeoutSeconds: 90, graceSeconds: 20}
  template:
    metadata:
      labels: {team: vision}
      annotations: {note: ours}
    spec:
      serviceAccountName: trainer
      securityContext: {runAsUser: 1234, fsGroup: 77}
      nodeSelector: {disk: ssd}
      tolerations: [{key: spot, operator: Exists}]
      imagePullSecrets: [{name: registry}]
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
              - matchExpressions: [{key: zone, operator: In, values: [a]}]
              - matchExpressions: [{key: zone, operator: In, values: [b]}]
      initContainers: [{name: fetch, image: fetcher}]
      containers:
        - name: trainer
          image: training:1
          command: [python, train.py]
          args: ["--data", "/data"]
          env: [{name: SEED, value: "1"}]
          volumeMounts: [{name: data, mountPath: /data}]
          resources: {requests: {cpu: 4}}
        - {name: tensorboard, image: board, livenessProbe: {tcpSocket: {port: 1}}}
      volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
"""
BOOKING = Booking(NodeName("node-7"), 3)
HIDDEN = [
    {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"},
    {"name": "CUDA_VISIBLE_DEVICES", "value": ""},
]
"""These variables hide GPUs."""


def made(change=None, **settings):
    document = yaml.safe_load(JOB)
    if change is not None:
        change(document["spec"])
    before = copy.deepcopy(document)
    job = jobfile.parse(document, require_template=True)
    pod = make_trainer(
        document, job, booking=BOOKING, settings=PodSettings(image="sidecar:9", **settings)
    )
    assert document == before, "the document from the API server stays unchanged"
    json.dumps(pod)
    return pod


def trainer(pod):
    return next(each for each in pod["spec"]["containers"] if each["name"] == "trainer")


def training_of(command):
    (option,) = [word for word in command if word.startswith("--training=")]
    return read_training(option.removeprefix("--training="))


def test_users_template_is_kept():
    pod = made()
    spec, wanted = pod["spec"], yaml.safe_load(JOB)["spec"]["template"]["spec"]
    for name in ("serviceAccountName", "securityContext", "nodeSelector"):
        assert spec[name] == wanted[name]
    for name in ("tolerations", "volumes"):
        assert all(each in spec[name] for each in wanted[name]), name
    for name, place in (("initContainers", 0), ("containers", 1)):
        theirs = {**wanted[name][place], "env": HIDDEN}
        assert theirs in spec[name], name
    own, theirs = trainer(pod), wanted["containers"][0]
    for name in ("image", "resources"):
        assert own[name] == theirs[name]
    assert theirs["env"][0] in own["env"]
    assert theirs["volumeMounts"][0] in own["volumeMounts"]
    assert pod["metadata"]["labels"]["team"] == "vision"
    assert pod["metadata"]["annotations"]["note"] == "ours"


def test_sidecar_starts_and_runs_the_training():
    command = trainer(made())["command"]
    assert command[:2] == ["/dljob/sidecar-start", "run"]
    assert command[command.index("--") + 1 :] == ["python", "train.py", "--data", "/data"]
    assert "args" not in trainer(made())
    assert "--job-uid=5D0E-11" in command
    assert training_of(command).checkpoint.timeout_seconds == 90


def test_checkpoint_memory_is_a_volume():
    def hold_in_memory(spec):
        spec["checkpoint"] = {
            "signal": "SIGUSR1",
            "confirm": "file",
            "path": "/ckpt",
            "complete": "dcp",
            "memory": "4Gi",
        }

    pod = made(hold_in_memory)
    (volume,) = [
        each
        for each in pod["spec"]["volumes"]
        if "emptyDir" in each and "medium" in each["emptyDir"]
    ]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "4096Mi"}
    mount = {"name": volume["name"], "mountPath": "/dljob-checkpoints"}
    assert mount in trainer(pod)["volumeMounts"]
    saving = training_of(trainer(pod)["command"]).checkpoint
    assert (saving.memory_bytes, saving.memory_path) == (4 << 30, "/dljob-checkpoints")


def test_pattern_is_escaped_for_kubernetes():
    assert training_of(trainer(made())["command"]).progress.log.endswith("$$(x)")


@pytest.mark.parametrize(
    "affinity",
    [
        None,
        {},
        {"nodeAffinity": None},
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": None}},
    ],
)
def test_empty_affinity_counts_as_none(affinity):
    def leave_empty(spec):
        spec["template"]["spec"]["affinity"] = affinity

    (term,) = made(leave_empty)["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert term == {
        "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-7"]}]
    }


def test_each_alternative_of_the_user_names_the_node():
    affinity = made()["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    here = {"key": "metadata.name", "operator": "In", "values": ["node-7"]}
    assert [term["matchFields"] for term in terms] == [[here], [here]]
    assert [term["matchExpressions"][0]["values"] for term in terms] == [["a"], ["b"]]
    assert "nodeName" not in made()["spec"]


def test_pod_stays_on_a_silent_node_unless_its_user_limits_that():
    away = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    ours = [{"key": key, "operator": "Exists", "effect": "NoExecute"} for key in away]
    assert [each for each in made()["spec"]["tolerations"] if each in ours] == ours

    def stays_if(**toleration):
        def change(spec):
            spec["template"]["spec"]["tolerations"] = [toleration]

        return [each["key"] for each in made(change)["spec"]["tolerations"] if each in ours]

    brief = {"key": away[1], "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
    assert stays_if(**brief) == [away[0]]
    assert stays_if(operator="Exists") == []
    assert stays_if(operator="Exists", effect="NoSchedule") == list(away)


@pytest.mark.parametrize(("asked", "given"), [(None, 120), (30, 120), (600, 600)])
def test_kubelet_waits_for_checkpoint_and_grace(asked, given):
    def ask(spec):
        if asked is not None:
            spec["template"]["spec"]["terminationGracePeriodSeconds"] = asked

    assert made(ask)["spec"]["terminationGracePeriodSeconds"] == given


def test_pod_belongs_to_its_job_until_its_end_is_proven():
    metadata = made()["metadata"]
    (owner,) = metadata["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == ("5D0E-11", True)
    assert metadata["finalizers"] == [names.PROOF_FINALIZER]
    assert metadata["labels"][names.SERIAL_LABEL] == "3"
    assert metadata["name"] == "resnet-3"


@pytest.mark.parametrize("length", [1, 47, 48, 49, 63])
def test_pod_names_are_valid_and_unique(length):
    stems = ["a" * (length - 1) + end for end in "bc"]
    made = [building.trainer_name(stem, serial) for stem in stems for serial in (1, 2**40)]
    assert len(set(made)) == 4
    assert max(map(len, made)) <= 63


@pytest.mark.parametrize("mark", ["cdi.k8s.io/gpus", "nvidia.cdi.k8s.io/container.board"])
def test_template_with_device_annotations_is_refused(mark):
    def ask(spec):
        spec["template"]["metadata"]["annotations"][mark] = "nvidia.com/gpu=all"

    with pytest.raises(WrongDocument, match=f"the annotation {mark} gives containers devices"):
        made(ask)


def test_gpus_are_hidden_from_other_containers():
    def add_side_car(spec):
        beside = {"name": "proxy", "image": "cuda", "restartPolicy": "Always"}
        spec["template"]["spec"]["initContainers"].append(beside)

    spec = made(add_side_car, runtime_class="nvidia")["spec"]
    for container in (*spec["initContainers"], *spec["containers"]):
        shown = [each for each in container["env"] if each["name"] == HIDDEN[0]["name"]]
        value = "all" if container["name"] == "trainer" else "void"
        assert [each["value"] for each in shown] == [value], container["name"]


def test_cdi_annotation_shows_gpus_to_the_trainer_only():
    pod = made(gpu_access=GpuAccess.CDI)
    assert pod["metadata"]["annotations"]["nvidia.cdi.k8s.io/container.trainer"] == (
        "nvidia.com/gpu=all"
    )
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in trainer(pod)["env"]
    assert "runtimeClassName" not in pod["spec"]
    ours = made(gpu_access=GpuAccess.CDI, cdi_annotation="cdi.k8s.io/x", cdi_devices="lab/gpu=all")
    assert ours["metadata"]["annotations"]["cdi.k8s.io/x"] == "lab/gpu=all"
    virtual = made(gpu_access=GpuAccess.CDI, virtual_gpus=True)
    assert not any("cdi.k8s.io" in mark for mark in virtual["metadata"]["annotations"])


def test_admin_claim_shows_gpus_to_the_trainer_only():
    def claim_more(spec):
        inner = spec["template"]["spec"]
        inner["resourceClaims"] = [{"name": "net", "resourceClaimName": "nic"}]
        inner["containers"][0]["resources"] = {"claims": [{"name": "net"}]}

    pod = made(claim_more, gpu_access=GpuAccess.DRA_ADMIN)
    ours = {"name": "dljob-gpus", "resourceClaimTemplateName": "dljob-gpus"}
    assert pod["spec"]["resourceClaims"] == [{"name": "net", "resourceClaimName": "nic"}, ours]
    claims = trainer(pod)["resources"]["claims"]
    assert claims == [{"name": "net"}, {"name": "dljob-gpus"}]
    others = (*pod["spec"]["initContainers"], *pod["spec"]["containers"])
    claiming = [each["name"] for each in others if (each.get("resources") or {}).get("claims")]
    assert claiming == ["trainer"]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in trainer(pod)["env"]
    virtual = made(gpu_access=GpuAccess.DRA_ADMIN, virtual_gpus=True)
    assert "resourceClaims" not in virtual["spec"]


def test_last_report_is_written_where_the_kubelet_reads():
    def change(spec):
        spec["template"]["spec"]["containers"][0]["terminationMessagePath"] = "/out/$(X)"

    assert "--left=/out/$$(X)" in trainer(made(change))["command"]
    assert not [word for word in trainer(made())["command"] if word.startswith("--left")]


def made_on(runtime: str, kubelet: str = "v1.36.0", **settings: Any) -> dict[str, Any]:
    document = yaml.safe_load(JOB)
    job = jobfile.parse(document, require_template=True)
    info = {"containerRuntimeVersion": runtime, "kubeletVersion": kubelet}
    node = {"status": {"nodeInfo": info}}
    return make_trainer(
        document,
        job,
        booking=BOOKING,
        settings=PodSettings(image="sidecar:9", **settings),
        node=node,
    )


@pytest.mark.parametrize(
    ("runtime", "kubelet", "by_volume"),
    [
        ("containerd://2.1.0", "v1.35.0", True),
        ("containerd://2.2.9", "v1.36.3-eks-1", True),
        ("containerd://2.0.5", "v1.36.0", False),
        ("containerd://1.7.27", "v1.36.0", False),
        ("containerd://2.2.0", "v1.34.9", False),
        ("cri-o://1.33.1", "v1.35.0", True),
        ("cri-o://1.32.9", "v1.35.0", False),
        ("docker://28.0.0", "v1.35.0", False),
        ("", "", False),
    ],
)
def test_sidecar_comes_by_an_image_volume_where_possible(runtime, kubelet, by_volume):
    pod = made_on(runtime, kubelet)
    spec, container = pod["spec"], trainer(pod)
    (volume,) = [each for each in spec["volumes"] if each["name"] == "dljob-sidecar"]
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "dljob-sidecar"]
    assert mount["readOnly"] is True
    installers = [each for each in spec["initContainers"] if each["image"] == "sidecar:9"]
    if by_volume:
        assert volume["image"] == {"reference": "sidecar:9"}
        # Files on an image volume are not executable.
        assert container["command"][:2] == ["/bin/sh", "/dljob/sidecar/sidecar-start"]
        assert installers == []
        assert not any("emptyDir" in each for each in spec["volumes"])
    else:
        assert "emptyDir" in volume
        assert container["command"][0] == "/dljob/sidecar-start"
        assert len(installers) == 1


def test_autoscalers_and_meshes_leave_a_training_alone():
    notes = made()["metadata"]["annotations"]
    assert notes["karpenter.sh/do-not-disrupt"] == "true"
    assert notes["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    assert notes["traffic.sidecar.istio.io/excludeInboundPorts"] == "8470,8471"

    def differ(spec):
        own = {"karpenter.sh/do-not-disrupt": "false"}
        spec["template"]["metadata"]["annotations"] = own

    assert made(differ)["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "false"


def test_auxiliaries_see_no_gpus_in_any_image():
    spec: dict[str, list[dict[str, object]]] = {
        "initContainers": [{"name": "fetch", "image": "f"}],
        "containers": [{"name": "ps", "image": "cuda", "env": [{"name": "A", "value": "1"}]}],
    }
    document = yaml.safe_load(JOB)
    role = Role(name="ps", replicas=2, template={"spec": spec})
    for number in range(2):
        pod = building.make_auxiliary(document, role, number=number)
        for container in (*pod["spec"]["initContainers"], *pod["spec"]["containers"]):
            assert container["env"][-2:] == HIDDEN
    assert "env" not in spec["initContainers"][0], "the user's template is unchanged"


def make_server(template: dict[str, Any], status: dict[str, Any] | None = None) -> dict[str, Any]:
    document = {**yaml.safe_load(JOB), "status": status or {}}
    template.setdefault("containers", [{"name": "ps", "image": "i"}])
    role = Role(name="ps", replicas=1, template={"spec": template})
    spec: dict[str, Any] = building.make_auxiliary(document, role, number=0)["spec"]
    return spec


def test_auxiliaries_prefer_the_nodes_of_their_job():
    nodes = [{"name": "n1", "gpuIds": [0]}, {"name": "n2", "gpuIds": [0, 1, 2]}]
    spec = make_server({}, {"allocation": {"gpus": 4, "nodes": nodes}})
    preferred = spec["affinity"]["nodeAffinity"][building.PREFERRED]
    fields = [each["preference"]["matchFields"][0]["values"] for each in preferred]
    assert (fields, [each["weight"] for each in preferred]) == ([["n2"], ["n1"]], [75, 25])


@pytest.mark.parametrize(
    "affinity",
    [
        {"nodeAffinity": {building.PREFERRED: [{"weight": 1, "preference": {}}]}},
        {"podAffinity": {building.PREFERRED: [{"weight": 1}]}},
        "nonsense",
    ],
)
def test_users_preference_for_an_auxiliary_is_kept(affinity):
    nodes = [{"name": "n1", "gpuIds": [0]}]
    spec = make_server({"affinity": affinity}, {"allocation": {"gpus": 1, "nodes": nodes}})
    assert spec["affinity"] == affinity
    assert "affinity" not in make_server({})


def checkpoints_in(path: str, *variables: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """The SideCar's options and the variables of a trainer with its checkpoint in ``path``."""

    def change(spec):
        spec["checkpoint"]["path"] = path
        spec["template"]["spec"]["containers"][0]["env"] = list(variables)

    container = trainer(made(change))
    return container["command"], {each["name"]: each.get("value", "") for each in container["env"]}


def test_checkpoint_path_may_use_a_variable_of_the_container():
    own = {"name": "DLJOB_CHECKPOINT_DIR", "value": "/ckpt/a"}
    command, variables = checkpoints_in("$(DLJOB_CHECKPOINT_DIR)/latest", own)
    assert variables["DLJOB_CHECKPOINT_DIR"] == "/ckpt/a"
    assert training_of(command).checkpoint.path == "/ckpt/a/latest"


def test_undefined_checkpoint_folder_is_refused_with_the_remedy():
    with pytest.raises(WrongDocument, match="set DLJOB_CHECKPOINT_DIR in the env of the container"):
        checkpoints_in("$(DLJOB_CHECKPOINT_DIR)")
