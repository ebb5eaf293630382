"""helm/headrace as Helm renders it: Kubernetes accepts the manifests, their names lead somewhere, wrong values fail."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers.chart import NEWEST, OLDEST, TOOLS, Manifests, problems, render, render_notes, run_with_packages
from helpers.checkout import ROOT
from ruamel.yaml import YAML

from headrace.pipeline.config.settings import load_settings
from headrace.pipeline.file.loader import parse_pipeline

# Helm and kubeconform are compiled from source once.
pytestmark = pytest.mark.slow

README = (ROOT / "README.md").read_text()
EXAMPLES = {
    "flights.yaml": (ROOT / "examples" / "flights.yaml").read_text(),
    "orders.yaml": README.split("```yaml\n")[1].split("```")[0],
}
PEER = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "spark"}}}
EVERYTHING: dict[str, Any] = {
    "image": {"repository": "registry.internal/headrace", "tag": "0.1.0-shop", "pullSecrets": [{"name": "registry"}]},
    "storage": {"host": "a.internal", "sslmode": "require"},
    "ledger": {"host": "b.internal", "sslmode": "verify-full", "passwordSecret": {"name": "ledger", "key": "word"}},
    "pipelines": EXAMPLES,
    "config": {
        "postgres_sink": {"host": "shop.internal", "password": {"env": "SHOP_DB_PASSWORD"}},
        "kafka_source": {"options": {"sasl.mechanism": "PLAIN", "sasl.password": {"env": "KAFKA_PASSWORD"}}},
    },
    "secretEnv": [
        {"name": "SHOP_DB_PASSWORD", "secret": "shop-db", "key": "password"},
        {"name": "KAFKA_PASSWORD", "secret": "kafka", "key": "password"},
    ],
    "secretFiles": [{"secret": "kafka-tls", "path": "/run/secrets/kafka"}],
    "env": {"OTEL_RESOURCE_ATTRIBUTES": "stage=live"},
    "automation": False,
    "runs": {"launcher": "kubernetes", "ttlSecondsAfterFinished": 60},
    "spark": {"master": "k8s://https://kubernetes.default.svc", "conf": {"spark.executor.memoryOverhead": "1g"}},
    "home": {"accessMode": "ReadWriteMany", "storageClass": "nfs", "size": "50Gi"},
    "dagster": {"concurrency": {"runs": {"max_concurrent_runs": 100}}},
    "codeLocations": [{"name": "reports", "host": "reports.data.svc", "port": 4000}],
    "webserver": {"replicas": 2, "readOnly": True},
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "host": "dagster.internal",
        "tlsSecret": "dagster-tls",
        "annotations": {"nginx.ingress.kubernetes.io/auth-url": "https://login.internal"},
    },
    "networkPolicy": {"webserverFrom": [PEER]},
    "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/headrace"}},
    "podAnnotations": {"team": "data"},
    "podLabels": {"team": "data"},
    "nodeSelector": {"pool": "data"},
    "tolerations": [{"key": "data", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}]}}},
    "extraVolumes": [{"name": "lake", "persistentVolumeClaim": {"claimName": "lake"}}],
    "extraVolumeMounts": [{"name": "lake", "mountPath": "/lake"}],
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "two-pipelines": {"pipelines": EXAMPLES},
    "everything": EVERYTHING,
    "spark-cluster": {
        "spark": {"master": "spark://spark-master:7077"},
        "home": {"existingClaim": "shared"},
        "networkPolicy": {"sparkFrom": [PEER]},
        "pipelinesConfigMap": "orders",
    },
    "jobs-without-volume": {
        "runs": {"launcher": "kubernetes"},
        "home": {"persistent": False},
        "networkPolicy": {"enabled": False},
        "fullnameOverride": "shop-headrace",
    },
}


@pytest.fixture(scope="module", params=CASES)
def manifests(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Manifests:
    assert (TOOLS / "bin" / "helm").exists(), "run `make chart-tools`"
    done = render(CASES[request.param], tmp_path_factory.mktemp("chart"))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return Manifests(done.stdout)


def settings_of(manifests: Manifests, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The settings of a process in the pod of the code location."""
    (container,) = manifests.pods()["shop-headrace-code"]["spec"]["containers"]
    fields = {"status.podIP": "10.0.0.7", "metadata.name": "shop-headrace-code-x"}
    values: dict[str, str] = {}
    for variable in container["env"]:
        source = variable.get("valueFrom", {})
        if "secretKeyRef" in source:
            value = f"value of {source['secretKeyRef']['name']}"
        elif source:
            value = fields[source["fieldRef"]["fieldPath"]]
        else:
            value = re.sub(r"\$\((\w+)\)", lambda name: values[name[1]], variable["value"])
        values[variable["name"]] = value
        monkeypatch.setenv(variable["name"], value)
    monkeypatch.chdir(folder)
    (folder / "config.yaml").write_text(manifests.of("ConfigMap")["shop-headrace"]["data"]["config.yaml"])
    return load_settings()


@pytest.mark.parametrize("release", [OLDEST, NEWEST])
def test_kubernetes_accepts_the_manifests(manifests: Manifests, release: str) -> None:
    assert problems(manifests.text, release) == ""
    executor = manifests.of("ConfigMap")["shop-headrace"]["data"].get("pod.yaml")
    assert executor is None or problems(executor, release) == ""


def test_kubeconform_refuses_an_unknown_field(manifests: Manifests) -> None:
    wrong = manifests.text.replace("terminationGracePeriodSeconds", "terminationGraceSeconds")
    assert "terminationGraceSeconds" in problems(wrong, NEWEST)


def test_pods_have_no_privileges(manifests: Manifests) -> None:
    for name, pod in manifests.pods().items():
        security = pod["spec"]["securityContext"]
        assert (security["runAsNonRoot"], security["runAsUser"]) == (True, 10001), name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["spec"]["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
            assert "/tmp" in mounts


def test_names_lead_to_objects(manifests: Manifests) -> None:
    config_maps, accounts = manifests.of("ConfigMap"), manifests.of("ServiceAccount")
    for name, pod in manifests.pods().items():
        spec = pod["spec"]
        assert spec.get("serviceAccountName") in {*accounts, None}
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for container in spec["containers"]:
            for mount in container["volumeMounts"]:
                volume = volumes[mount["name"]]
                if "configMap" in volume and volume["configMap"]["name"] != "orders":
                    data = config_maps[volume["configMap"]["name"]]["data"]
                    assert mount.get("subPath") in {*data, None}, (name, mount)
                if claim := volume.get("persistentVolumeClaim"):
                    assert claim["claimName"] in {*manifests.of("PersistentVolumeClaim"), "shared", "lake"}
    for service in manifests.of("Service").values():
        assert service["spec"]["type"] == "ClusterIP"
        selector = service["spec"]["selector"].items()
        (pod,) = [one for one in manifests.pods().values() if selector <= one["metadata"]["labels"].items()]
        ports = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for ingress in manifests.of("Ingress").values():
        (rule,) = ingress["spec"]["rules"]
        backend = rule["http"]["paths"][0]["backend"]["service"]
        port = manifests.of("Service")[backend["name"]]["spec"]["ports"][0]
        assert backend["port"] == {"name": port["name"]}
    workspace = YAML(typ="safe").load(config_maps["shop-headrace-dagster"]["data"]["workspace.yaml"])
    own = workspace["load_from"][0]["grpc_server"]
    assert manifests.of("Service")[own["host"]]["spec"]["ports"][0]["port"] == own["port"]
    assert not manifests.of("Secret")


def test_pods_have_rights_only_for_what_they_start(manifests: Manifests) -> None:
    roles = {name: one["rules"] for name, one in manifests.of("Role").items()}
    has_jobs = "run_launcher" in manifests.of("ConfigMap")["shop-headrace-dagster"]["data"]["dagster.yaml"]
    has_executors = "executor" in manifests.pods()
    wanted = {"shop-headrace-dagster"} if has_jobs else set()
    assert set(roles) == wanted | ({"shop-headrace-runs"} if has_executors else set())
    for name, rules in roles.items():
        assert not [rule for rule in rules if "*" in json.dumps(rule) or "secrets" in rule["resources"]]
        (subject,) = manifests.of("RoleBinding")[name]["subjects"]
        assert subject == {"kind": "ServiceAccount", "name": name, "namespace": "data"}
    for name, pod in manifests.pods().items():
        account = pod["spec"].get("serviceAccountName")
        assert pod["spec"]["automountServiceAccountToken"] == (account in roles), name


def test_network_policies_select_the_pods_of_the_release(manifests: Manifests) -> None:
    policies = manifests.of("NetworkPolicy")
    for name, pod in manifests.pods().items():
        labels = pod["metadata"]["labels"].items()
        result = [
            one for one in policies.values() if one["spec"]["podSelector"]["matchLabels"].items() <= labels
        ]
        assert len(result) == (1 if policies else 0), name
    if policies:
        code = policies["shop-headrace-code"]["spec"]["ingress"]
        peers = [peer for rule in code if rule.get("ports") for peer in rule["from"]]
        components = {peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for peer in peers}
        assert components == {"webserver", "daemon"}


def test_settings_and_pipelines_load(
    manifests: Manifests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(manifests, tmp_path, monkeypatch)
    assert settings.state_backend.backend_type == "postgres"
    assert settings.state_backend.postgres.db == "ledger"
    secret = "ledger" if settings.state_backend.postgres.host == "b.internal" else "headrace-postgres"
    assert settings.state_backend.postgres.password.get_secret_value() == f"value of {secret}"
    if settings.spark.master.startswith("local"):
        assert settings.spark.conf == {}
    else:
        assert settings.spark.conf["spark.driver.host"] == "10.0.0.7"
    if settings.spark.master.startswith("k8s"):
        assert settings.spark.conf["spark.kubernetes.driver.pod.name"] == "shop-headrace-code-x"
        assert settings.spark.conf["spark.executor.memoryOverhead"] == "1g"
        assert settings.postgres_sink.password.get_secret_value() == "value of shop-db"
        (mount,) = [
            mount
            for mount in manifests.pods()["shop-headrace-code"]["spec"]["containers"][0]["volumeMounts"]
            if mount.get("subPath") == "pod.yaml"
        ]
        assert settings.spark.conf["spark.kubernetes.executor.podTemplateFile"] == mount["mountPath"]
    if "shop-headrace-pipelines" in manifests.of("ConfigMap"):
        pipelines = manifests.of("ConfigMap")["shop-headrace-pipelines"]["data"]
        assert pipelines in ({}, EXAMPLES)
        for name, text in pipelines.items():
            assert parse_pipeline(text, name).name


INSTANCE = """
import json, sys
from dagster._core.instance.ref import InstanceRef
ref = InstanceRef.from_dir(sys.argv[1])
data = ref.run_launcher_data
print(json.dumps([ref.run_storage_data.class_name, data.class_name, data.config_dict]))
"""
JOB = """
import json, sys
import kubernetes
from dagster import DagsterInstance
from dagster._config import process_config, resolve_to_config_type
from dagster_k8s import K8sRunLauncher
from dagster_k8s.container_context import K8sContainerContext
from dagster_k8s.job import DagsterK8sJobConfig, UserDefinedDagsterK8sConfig, construct_dagster_k8s_job
config = process_config(resolve_to_config_type(K8sRunLauncher.config_type()), json.loads(sys.argv[1]))
assert config.success, config.errors
values = dict(config.value)
job = construct_dagster_k8s_job(
    job_config=DagsterK8sJobConfig(
        job_image=values["job_image"],
        dagster_home=values["dagster_home"],
        image_pull_policy=values["image_pull_policy"],
        image_pull_secrets=values["image_pull_secrets"],
        service_account_name=values["service_account_name"],
        instance_config_map=values["instance_config_map"],
        labels=values["labels"],
    ),
    args=["dagster", "api", "execute_run", "{}"],
    job_name="dagster-run-1",
    component="run_worker",
    user_defined_k8s_config=UserDefinedDagsterK8sConfig.from_dict(values["run_k8s_config"]),
)
print(json.dumps(kubernetes.client.ApiClient().sanitize_for_serialization(job)))
"""


def test_dagster_reads_its_configuration(manifests: Manifests, tmp_path: Path) -> None:
    """The Job of a run is made by Dagster's own package, and Kubernetes accepts it."""
    config = manifests.of("ConfigMap")["shop-headrace-dagster"]["data"]["dagster.yaml"]
    (tmp_path / "dagster.yaml").write_text(config)
    result = json.loads(run_with_packages(INSTANCE, str(tmp_path), DAGSTER_POSTGRES_PASSWORD="word"))
    assert result[0] == "PostgresRunStorage"
    if "run_launcher" not in config:
        assert result[1] == "DefaultRunLauncher"
        return
    assert result[1] == "K8sRunLauncher"
    job = json.loads(run_with_packages(JOB, json.dumps(result[2])))
    for release in (OLDEST, NEWEST):
        assert problems(json.dumps(job), release) == ""
    pod, code = job["spec"]["template"], manifests.pods()["shop-headrace-code"]
    (run,), (own,) = pod["spec"]["containers"], code["spec"]["containers"]
    variables = {json.dumps(variable, sort_keys=True) for variable in run["env"]}
    assert {
        json.dumps(one, sort_keys=True) for one in own["env"] if one["name"] != "DAGSTER_CURRENT_IMAGE"
    } <= variables
    assert run["volumeMounts"] == own["volumeMounts"]
    assert pod["spec"]["volumes"] == code["spec"]["volumes"]
    assert (run["image"], run["workingDir"]) == (own["image"], own["workingDir"])
    assert run["securityContext"] == own["securityContext"]
    for key in ("securityContext", "terminationGracePeriodSeconds", "enableServiceLinks"):
        assert pod["spec"][key] == code["spec"][key], key
    assert pod["spec"].get("affinity", {}) == code["spec"].get("affinity", {})
    assert pod["spec"]["automountServiceAccountToken"] == code["spec"]["automountServiceAccountToken"]
    assert job["spec"]["backoffLimit"] == 0
    selectors = [one["spec"]["podSelector"]["matchLabels"] for one in manifests.of("NetworkPolicy").values()]
    labels = pod["metadata"]["labels"].items()
    assert len([one for one in selectors if one.items() <= labels]) == (1 if selectors else 0)


def test_pods_start_again_if_configuration_changes(tmp_path: Path) -> None:
    def annotations(values: dict[str, Any]) -> dict[str, dict[str, str]]:
        pods = Manifests(render(values, tmp_path).stdout).pods()
        return {
            name.removeprefix("shop-headrace-"): pod["metadata"]["annotations"] for name, pod in pods.items()
        }

    before = annotations({})
    for values, changed in (
        ({"pipelines": EXAMPLES}, {"code"}),
        ({"config": {"lease_seconds": 20}}, {"code"}),
        ({"dagster": {"telemetry": {"enabled": True}}}, {"code", "daemon", "webserver"}),
    ):
        after = annotations(values)
        assert {name for name in before if before[name] != after[name]} == changed, values


def test_notes_name_what_must_exist(tmp_path: Path) -> None:
    defaults = render_notes({}, tmp_path)
    assert "There is no pipeline yet" in defaults
    assert "Secret headrace-postgres, key password" in defaults
    result = render_notes(EVERYTHING, tmp_path)
    assert "https://dagster.internal" in result
    assert "Secret shop-db, key password" in result
    assert "Secret kafka-tls" in result
    assert "no pipeline" not in result
    assert "WARNING" not in result


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"replicas": 2}, "replicas"),
    "no host": ({"storage": {"host": ""}}, "/storage/host"),
    "port": ({"ledger": {"port": 70000}}, "/ledger/port"),
    "port as text": ({"ledger": {"port": "5432"}}, "/ledger/port"),
    "sslmode": ({"ledger": {"sslmode": "on"}}, "/ledger/sslmode"),
    "password in values": ({"storage": {"password": "word"}}, "password"),
    "secret name": ({"storage": {"passwordSecret": {"name": "My Secret"}}}, "/storage/passwordSecret/name"),
    "plain password": ({"config": {"postgres_sink": {"password": "word"}}}, "/config/postgres_sink/password"),
    "plain Kafka password": (
        {"config": {"kafka_source": {"options": {"sasl.password": "word"}}}},
        "/config/kafka_source/options/sasl.password",
    ),
    "password as variable": ({"env": {"HEADRACE__POSTGRES_SINK__PASSWORD": "word"}}, "Use secretEnv"),
    "name of a variable": ({"env": {"A-B": "x"}}, "/env"),
    "variable name": ({"secretEnv": [{"name": "A-B", "secret": "s", "key": "k"}]}, "/secretEnv/0/name"),
    "secret without key": ({"secretEnv": [{"name": "A", "secret": "s"}]}, "/secretEnv/0"),
    "relative folder": ({"secretFiles": [{"secret": "s", "path": "run"}]}, "/secretFiles/0/path"),
    "tag latest": ({"image": {"tag": "latest"}}, "/image/tag"),
    "pull policy": ({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy"),
    "launcher": ({"runs": {"launcher": "celery"}}, "/runs/launcher"),
    "master": ({"spark": {"master": "mesos://a:1"}}, "/spark/master"),
    "master without port": ({"spark": {"master": "spark://a"}}, "/spark/master"),
    "memory": ({"spark": {"driverMemory": "2Gi"}}, "/spark/driverMemory"),
    "executors": ({"spark": {"executor": {"instances": 0}}}, "/spark/executor/instances"),
    "access mode": ({"home": {"accessMode": "RWX"}}, "/home/accessMode"),
    "size": ({"home": {"size": "10G B"}}, "/home/size"),
    "module": ({"code": {"module": "shop/definitions.py"}}, "/code/module"),
    "replicas": ({"webserver": {"replicas": 0}}, "/webserver/replicas"),
    "file name": ({"pipelines": {"orders": "name: a"}}, "such as orders.yaml"),
    "code location": ({"codeLocations": [{"name": "a", "host": "b"}]}, "/codeLocations/0"),
    "volume of one node": ({"runs": {"launcher": "kubernetes"}}, "Set ReadWriteMany"),
    "executors on other nodes": (
        {"spark": {"master": "k8s://https://kubernetes.default.svc"}},
        "Set ReadWriteMany",
    ),
    "cluster without way back": (
        {"spark": {"master": "spark://a:7077"}, "home": {"accessMode": "ReadWriteMany"}},
        "networkPolicy.sparkFrom",
    ),
    "two places of pipelines": (
        {"pipelines": EXAMPLES, "pipelinesConfigMap": "orders"},
        "either pipelines or the name",
    ),
    "broken pipeline": ({"pipelines": {"orders.yaml": "name: [a"}}, "orders.yaml is not YAML"),
    "not a pipeline": ({"pipelines": {"orders.yaml": "name: a"}}, "headrace validate --quick"),
    "ledger in config": ({"config": {"state_backend": {"backend_type": "sqlite"}}}, "Set the value `ledger`"),
    "spark in config": ({"config": {"spark": {"driver_memory": "4g"}}}, "Set the value `spark`"),
    "storage in dagster": ({"dagster": {"storage": {}}}, "Set the value `storage`"),
    "launcher in dagster": ({"dagster": {"run_launcher": {}}}, "Set the value `runs.launcher`"),
    "variable twice": (
        {"secretEnv": [{"name": "A", "secret": "s", "key": "k"}] * 2},
        "A is there twice",
    ),
    "variable in two values": (
        {"secretEnv": [{"name": "A", "secret": "s", "key": "k"}], "env": {"A": "x"}},
        "secretEnv has this variable",
    ),
    "own code location": (
        {"codeLocations": [{"name": "headrace", "host": "b", "port": 1}]},
        "name of the chart's own location",
    ),
    "ingress without host": ({"ingress": {"enabled": True}}, "ingress.host"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_values_are_refused(case: str, tmp_path: Path) -> None:
    values, message = WRONG[case]
    done = render(values, tmp_path)
    assert done.returncode != 0
    assert message in done.stderr
    assert "word" not in done.stderr.replace("password", "").replace("Password", "")


def test_old_clusters_are_refused(tmp_path: Path) -> None:
    done = render({}, tmp_path, "--kube-version", "1.26.0")
    assert done.returncode != 0
    assert ">=1.27.0" in done.stderr
