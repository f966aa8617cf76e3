"""The documents that the chart renders from values, without a cluster."""

import pytest
import yaml

from dljob.known_policies import read_live_policy
from dljob.operator.jobs import crd
from dljob.operator.settings import load_settings
from tests.chart.helms import CHART

pytestmark = pytest.mark.cluster

EVERYTHING = {
    "namespaces": ["team-a", "team-b"],
    "image": {"repository": "lab.example/dljob", "tag": "2", "pullSecrets": ["lab"]},
    "sidecar": {"image": {"digest": "sha256:" + "0" * 64, "pullSecrets": ["team"]}},
    "store": {"type": "deployed"},
    "notify": {"existingSecret": {"name": "chat", "tokenKey": "password"}},
    "scheduler": {"enabled": True, "extenderArgs": ["--overtaking=harmless"]},
    "networkPolicy": {"jobNamespaces": ["team-a", "team-b"]},
    "metrics": {"monitor": "pod", "rules": True, "dashboard": {"enabled": True}},
    "uninstall": {"jobs": "end"},
    "web": {"enabled": True, "hosts": ["gpus.example.com"]},
    "settings": {
        "policy": "max-min",
        "pool": {"mode": "reserve"},
        "limits": {"maxGpus": {"*": 4}},
        "pods": {"releaseSeconds": 90},
        "kueue": {"enabled": True},
    },
    "nodeSelector": {"role": "control"},
    "tolerations": [{"key": "control", "operator": "Exists"}],
    "priorityClassName": "system-cluster-critical",
    "podLabels": {"team": "lab"},
    "podAnnotations": {"note": "x"},
}


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["usual", "everything"])
def test_lint_finds_nothing(helm, values):
    said = helm("lint", CHART, "--strict", values=values)
    assert "0 chart(s) failed" in said
    assert "[WARNING]" not in said
    assert "[ERROR]" not in said


@pytest.mark.parametrize("policy", ["ones", "afs-p:unit_s=600", "dragon"])
def test_chart_and_operator_take_policies_of_papers(helm, tmp_path, policy):
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump(helm.render({"settings": {"policy": policy}}).settings()))
    chosen = load_settings(file, ()).settings.policy
    assert read_live_policy(chosen).name == policy.partition(":")[0]


@pytest.mark.story
def test_operator_accepts_the_rendered_settings(helm, tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump(helm.render(EVERYTHING).settings()))
    settings = load_settings(file, ()).settings
    assert settings.policy == "max-min"
    assert settings.watched == ("team-a", "team-b")
    assert settings.limits.max_gpus == {"*": 4}
    assert settings.pods.image == "dljob-sidecar@sha256:" + "0" * 64
    assert settings.pods.pull_secrets == ("team",)
    assert settings.pods.release_seconds == 90
    assert settings.kueue.enabled
    files = (settings.notify.url_file, settings.notify.token_file)
    assert files == ("/etc/dljob-notify/url", "/etc/dljob-notify/token")
    assert settings.pods.runtime_class == "nvidia", "other settings keep their defaults"


def test_definition_is_ours_and_outlives_the_release(helm):
    found = helm.render().find("CustomResourceDefinition", crd.NAME)
    assert found["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert found == crd.definition()
    assert not helm.render({"crd": {"install": False}}).names("CustomResourceDefinition")


@pytest.mark.story
def test_pods_are_restricted(helm):
    rendered = helm.render(EVERYTHING)
    pods = [
        each["spec"]["template"]["spec"] for each in rendered if "template" in each.get("spec", {})
    ]
    assert len(pods) == 5, "operator, scheduler, store, page, and the Job that ends jobs"
    for pod in pods:
        assert not [each for each in pod if each.startswith("host")]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in [*pod["containers"], *pod.get("initContainers", ())]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"requests", "limits"} <= set(container["resources"])
            assert {"name": "scratch", "mountPath": "/tmp"} in container["volumeMounts"]  # noqa: S108


# --- the page -----------------------------------------------------------------------------


def arguments_of_page(rendered):
    [container] = rendered.pod("dljob-web")["containers"]
    return container["args"]


def test_page_is_optional_and_has_a_certificate(helm):
    assert "dljob-web" not in helm.render().text
    rendered = helm.render({"web": {"enabled": True, "hosts": ["gpus.example.com"]}})
    arguments = arguments_of_page(rendered)
    assert {"--tls=/var/run/dljob-tls", "--make-tls", "--host=gpus.example.com"} <= set(arguments)
    assert rendered.find("Service", "dljob-web")["spec"]["ports"][0]["port"] == 443
    rendered = helm.render({"web": {"enabled": True, "tls": {"secretName": "mine"}}})
    assert "--make-tls" not in arguments_of_page(rendered)
    volumes = {each["name"]: each for each in rendered.pod("dljob-web")["volumes"]}
    assert volumes["tls"]["secret"] == {"secretName": "mine"}
    rendered = helm.render({"web": {"enabled": True, "tls": {"enabled": False}}})
    assert "--no-tls" in arguments_of_page(rendered)
    assert rendered.find("Service", "dljob-web")["spec"]["ports"][0]["port"] == 80


def test_page_is_read_only_and_reaches_the_store(helm):
    rendered = helm.render({"web": {"enabled": True}, "store": {"type": "deployed"}})
    rules = [
        *rendered.find("ClusterRole", "dljob-web")["rules"],
        *rendered.find("Role", "dljob-web")["rules"],
    ]
    reviews = {"tokenreviews", "subjectaccessreviews"}
    for rule in rules:
        verbs = {"create"} if set(rule["resources"]) <= reviews else {"get", "list"}
        assert set(rule["verbs"]) <= verbs
        assert "secrets" not in rule["resources"]
    [container] = rendered.pod("dljob-web")["containers"]
    assert "DLJOB_STORE" in {each["name"] for each in container["env"]}
    [ingress] = rendered.find("NetworkPolicy", "dljob-mongodb")["spec"]["ingress"]
    components = {
        each["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        for each in ingress["from"]
    }
    assert components == {"operator", "web"}


def test_page_reads_jobs_in_the_namespaces_of_the_operator(helm):
    def rules_of(rendered, kind, *, namespace=""):
        [found] = [
            each
            for each in rendered
            if each["kind"] == kind
            and each["metadata"]["name"] == "dljob-web"
            and each["metadata"].get("namespace", "") == namespace
        ]
        return {name for rule in found["rules"] for name in rule["resources"]}

    ours = {"dljobs", "events"}
    rendered = helm.render({"web": {"enabled": True}})
    assert ours <= rules_of(rendered, "ClusterRole")
    assert not [each for each in arguments_of_page(rendered) if "--namespace" in each]
    limited = {"web": {"enabled": True}, "namespaces": ["team-a", "dljob-system"]}
    rendered = helm.render(limited)
    reviews = {"tokenreviews", "subjectaccessreviews"}
    assert rules_of(rendered, "ClusterRole") == {*reviews, "nodes", "namespaces"}
    assert rules_of(rendered, "Role", namespace="team-a") == ours
    assert rules_of(rendered, "Role", namespace="dljob-system") == {*ours, "configmaps"}
    assert {"--namespace=team-a", "--namespace=dljob-system"} <= set(arguments_of_page(rendered))


# --- replicas and stores ------------------------------------------------------------------


def test_foreign_claims_are_refused_on_a_pool_with_a_driver(helm):
    def expressions(gpu_access: str) -> str:
        settings = {"pods": {"gpuAccess": gpu_access}} if gpu_access else {}
        rendered = helm.render({"admission": {"enabled": True}, "settings": settings})
        policy = rendered.find("ValidatingAdmissionPolicy", "dljob-pool")
        return " ".join(each["expression"] for each in policy["spec"]["validations"])

    assert "resourceClaims" in expressions("dra-admin")
    for other in ("", "cdi"):
        assert "resourceClaims" not in expressions(other)


def store_of(rendered):
    [container] = rendered.pod()["containers"]
    variables = {each["name"]: each for each in container.get("env", ())}
    return variables.get("DLJOB_STORE", {})


def test_default_has_two_replicas_and_a_store_in_the_pod(helm):
    rendered = helm.render()
    assert rendered.find("Deployment")["spec"]["replicas"] == 2
    assert rendered.names("PodDisruptionBudget") == {"dljob-operator"}
    assert store_of(rendered) == {}
    assert rendered.settings()["store"] == "/var/lib/dljob/profiles.db"
    [state] = [each for each in rendered.pod()["volumes"] if each["name"] == "state"]
    assert state == {"name": "state", "emptyDir": {}}


def test_sqlite_has_one_replica_and_a_volume(helm):
    rendered = helm.render({"store": {"type": "sqlite", "sqlite": {"size": "3Gi"}}})
    deployment = rendered.find("Deployment")["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    assert not rendered.names("PodDisruptionBudget")
    claim = rendered.find("PersistentVolumeClaim", "dljob-state")
    assert claim["spec"]["resources"] == {"requests": {"storage": "3Gi"}}
    [state] = [each for each in rendered.pod()["volumes"] if each["name"] == "state"]
    assert state["persistentVolumeClaim"] == {"claimName": "dljob-state"}
    there = {"store": {"type": "sqlite", "sqlite": {"existingClaim": "mine"}}}
    assert not helm.render(there).names("PersistentVolumeClaim")


def test_url_of_a_server_is_in_a_secret(helm):
    url = "mongodb://lab:word@host/dljob"
    rendered = helm.render({"store": {"type": "mongodb", "mongodb": {"url": url}}})
    assert rendered.find("Secret", "dljob-store")["stringData"] == {"url": url}
    assert rendered.text.count(url) == 1
    reference = {"name": "dljob-store", "key": "url"}
    assert store_of(rendered)["valueFrom"] == {"secretKeyRef": reference}
    secret = {"name": "theirs", "key": "address"}
    rendered = helm.render({"store": {"type": "mongodb", "mongodb": {"existingSecret": secret}}})
    assert not rendered.names("Secret")
    assert store_of(rendered)["valueFrom"] == {"secretKeyRef": secret}


def test_deployed_server_has_a_random_password(helm):
    rendered = helm.render({"store": {"type": "deployed"}})
    secret = rendered.find("Secret", "dljob-mongodb")
    assert secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    again = helm.render({"store": {"type": "deployed"}}).find("Secret", "dljob-mongodb")
    assert secret["data"]["password"] != again["data"]["password"]
    assert store_of(rendered)["value"] == (
        "mongodb://dljob-mongodb.dljob-system.svc:27017/dljob?authSource=admin"
    )
    assert rendered.find("Service", "dljob-mongodb")
    assert "dljob-mongodb" in rendered.names("NetworkPolicy")
    other = {"image": {"repository": "other"}, "auth": False, "size": "", "args": []}
    rendered = helm.render({"store": {"type": "deployed", "deployed": other}})
    assert not rendered.names("Secret")
    assert "volumeClaimTemplates" not in rendered.find("StatefulSet", "dljob-mongodb")["spec"]


# --- namespaces -----------------------------------------------------------------------------


def test_limited_operator_has_no_rights_elsewhere(helm):
    rendered = helm.render({"namespaces": ["team-a", "team-b"]})
    everywhere = rendered.find("ClusterRole")["rules"]
    assert {verb for rule in everywhere for verb in rule["verbs"]} == {"get", "list", "watch"}
    assert not [rule for rule in everywhere if {"dljobs", "secrets"} & set(rule["resources"])]
    for namespace in ("team-a", "team-b"):
        role = rendered.find("Role", namespace=namespace)
        assert {"dljobs", "pods", "secrets"} <= {
            each for rule in role["rules"] for each in rule["resources"]
        }
        binding = rendered.find("RoleBinding", namespace=namespace)
        assert binding["subjects"][0]["namespace"] == "dljob-system"
    at_home = rendered.find("Role", namespace="dljob-system")["rules"]
    assert [rule["verbs"] for rule in at_home if "dljobs" in rule["resources"]] == [
        ["list", "watch"]
    ]


def test_admission_policies_know_account_taint_and_runtime_class(helm):
    pods = {"taint": "lab/pool", "runtimeClass": "gpus"}
    text = helm.render({"settings": {"pods": pods}}, "--namespace=lab").text
    assert text.count("system:serviceaccount:lab:dljob-operator") == 6
    assert "system:serviceaccount:dljob-system" not in text
    assert "t.key == 'lab/pool'" in text
    assert "startsWith('gpus')" in text
    without = helm.render({"admission": {"enabled": False}})
    assert not without.names("ValidatingAdmissionPolicy")


HOLDING = "--api-versions=admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"


def test_ttl_of_the_administrator_widens_the_right_to_delete(helm):
    def condition(values):
        policy = helm.render(values).find("ValidatingAdmissionPolicy", "dljob-operator-jobs")
        return policy["spec"]["validations"][-1]["expression"]

    timed = {"settings": {"rules": {"ttlSecondsAfterFinished": 3600}}}
    assert "has(oldObject.spec.ttlSecondsAfterFinished)" in condition({})
    assert "ttlSecondsAfterFinished" not in condition(timed)
    assert all("['Completed', 'Failed']" in condition(values) for values in ({}, timed))


def test_new_jobs_are_held_where_the_cluster_can(helm):
    everywhere = helm.render({}, HOLDING).find("MutatingAdmissionPolicyBinding", "dljob-holding")
    assert "matchResources" not in everywhere["spec"]
    some = helm.render({"namespaces": ["team-a"]}, HOLDING)
    binding = some.find("MutatingAdmissionPolicyBinding", "dljob-holding")
    [only] = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert (only["operator"], only["values"]) == ("In", ["team-a"])
    for older in (helm.render(), helm.render({"admission": {"enabled": False}}, HOLDING)):
        assert not older.names("MutatingAdmissionPolicy")


def test_monitors_match_the_pods(helm):
    both = {"monitor": "service", "rules": True, "labels": {"release": "prometheus"}}
    rendered = helm.render({"metrics": both, "scheduler": {"enabled": True}})
    assert rendered.names("ServiceMonitor") == {"dljob-operator"}
    assert rendered.names("PodMonitor") == {"dljob-scheduler"}
    assert rendered.names("PrometheusRule") == {"dljob", "dljob-dcgm", "dljob-gangs"}
    for kind in ("ServiceMonitor", "PodMonitor", "PrometheusRule"):
        for each in rendered:
            if each["kind"] == kind:
                assert each["metadata"]["labels"]["release"] == "prometheus"
    labels = rendered.find("Service")["metadata"]["labels"]
    chosen = rendered.find("ServiceMonitor")["spec"]["selector"]["matchLabels"]
    assert chosen.items() <= labels.items()


def test_rare_values_reach_the_pods(helm):
    mongodb = {"url": "mongodb://c/d?tls=true", "caSecret": {"name": "db-ca", "key": "root.pem"}}
    reader = {"name": "reader", "key": "address"}
    rendered = helm.render(
        {
            "podSecurity": {"user": None, "group": None},
            "store": {"type": "mongodb", "mongodb": mongodb},
            "web": {
                "enabled": True,
                "whatIfSeconds": 12.5,
                "store": {"existingSecret": reader},
                "proxy": {"userHeader": "X-User", "existingSecret": {"name": "door"}},
            },
            "scheduler": {"enabled": True},
            "metrics": {"protected": True, "monitor": "service"},
        },
        "--kube-version=v1.35.2+k3s1",
        "--api-versions=monitoring.coreos.com/v1",
    )
    pod = rendered.pod()
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    [volume] = [each for each in pod["volumes"] if each["name"] == "store-ca"]
    items = [{"key": "root.pem", "path": "ca.crt"}]
    assert volume["secret"] == {"secretName": "db-ca", "items": items}
    mount = {"name": "store-ca", "mountPath": "/etc/dljob-store", "readOnly": True}
    assert mount in pod["containers"][0]["volumeMounts"]
    [web] = rendered.pod("dljob-web")["containers"]
    assert "--what-if-seconds=12.5" in web["args"]
    environment = {each["name"]: each for each in web["env"]}
    assert environment["DLJOB_STORE"]["valueFrom"] == {"secretKeyRef": reader}
    door = {"name": "door", "key": "secret"}
    assert environment["DLJOB_PROXY_SECRET"]["valueFrom"] == {"secretKeyRef": door}
    assert "--proxy-user=X-User" in web["args"]
    [scheduler] = rendered.pod("dljob-scheduler")["containers"]
    assert scheduler["image"] == "registry.k8s.io/kube-scheduler:v1.35.2"
    [endpoint] = rendered.find("ServiceMonitor")["spec"]["endpoints"]
    assert (endpoint["port"], endpoint["scheme"]) == ("metrics", "https")


def test_notify_secret_is_where_the_settings_say(helm):
    pod = helm.render(EVERYTHING).find("Deployment", "dljob-operator")["spec"]["template"]["spec"]
    [volume] = [each for each in pod["volumes"] if each["name"] == "notify"]
    assert volume["secret"]["secretName"] == "chat"
    assert volume["secret"]["items"] == [
        {"key": "url", "path": "url"},
        {"key": "password", "path": "token"},
    ]
    [mount] = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "notify"]
    assert mount == {"name": "notify", "mountPath": "/etc/dljob-notify", "readOnly": True}


def test_rights_and_policies_for_kueue_come_with_the_setting(helm):
    def kueue(values):
        documents = helm.render(values).documents
        rules = [rule for each in documents for rule in each.get("rules", ())]
        ours = [rule for rule in rules if "kueue.x-k8s.io" in rule.get("apiGroups", ())]
        names = {each["metadata"]["name"] for each in documents}
        verbs = {(what, verb) for r in ours for what in r["resources"] for verb in r["verbs"]}
        return verbs, names & {"dljob-queue-changes", "dljob-operator-workloads"}

    assert kueue({}) == (set(), set())
    boosting, _ = kueue({"settings": {"kueue": {"enabled": True, "mostBoost": 60}}})
    verbs, policies = kueue({"settings": {"kueue": {"enabled": True}}})
    assert policies == {"dljob-queue-changes", "dljob-operator-workloads"}
    assert verbs == {
        *(("workloads", verb) for verb in ("list", "watch", "create", "delete")),
        ("workloads/status", "patch"),
        ("workloadpriorityclasses", "get"),
        *((what, v) for what in ("resourceflavors", "clusterqueues") for v in ("list", "watch")),
    }
    assert boosting - verbs == {("workloads", "patch")}
