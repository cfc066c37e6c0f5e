"""examples/ and the Dockerfile: manifests match the published schemas, units load, every command is valid."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import threading
import tomllib
import zipfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from seedcli.cli.main import app
from seedcli.config.schema import Config
from seedcli.config.sources import load_config
from seedcli.errors import EXIT_DONE, EXIT_REFUSED, EXIT_USAGE, RefusedError
from seedcli.net.security.token import Token

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
KUBERNETES = EXAMPLES / "kubernetes"
UNITS = sorted((EXAMPLES / "systemd").glob("*.service"))
STOP_SECONDS = 15  # time in which a learner promises to stop


def parse(arguments: list[str]) -> dict[str, Any]:
    """Parse a command line of `seed` without running it; returns its parameters, raises if it is wrong."""
    group: Any = typer.main.get_command(app)
    name, *rest = arguments
    with group.make_context("seed", []) as context, group.commands[name].make_context(name, rest, context) as inner:
        return {"command": name, **inner.params}


def check_learner(arguments: list[str], environ: dict[str, str]) -> Config:
    """Check that a learner's command line is valid and resumes its run; returns its configuration."""
    given = parse(arguments)
    assert given["command"] == "learner" and given["continue_"] and given["logdir"].is_absolute()
    flags = {"--metrics-port": given["metrics_port"]}
    return load_config(given["preset"], sets=given["sets"] or (), flags=flags, environ=environ).config


# -- Kubernetes -----------------------------------------------------------------------------------------------------


def manifests() -> list[Any]:
    return [
        pytest.param(document, id=f"{path.stem}-{document['kind']}")
        for path in sorted(KUBERNETES.glob("*.yaml"))
        if path.stem != "kustomization"
        for document in yaml.safe_load_all(path.read_text())
    ]


def manifest(kind: str, name: str) -> dict[str, Any]:
    (found,) = (
        parameter.values[0]
        for parameter in manifests()
        if (parameter.values[0]["kind"], parameter.values[0]["metadata"]["name"]) == (kind, name)
    )
    return dict(found)


WORKLOADS = [manifest("StatefulSet", "seed-learner"), manifest("Deployment", "seed-actors")]


@pytest.mark.parametrize("document", manifests())
def test_manifests_match_the_published_schemas(document: dict[str, Any]) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate comes with the test extra")
    for version in ("1.31", validate.latest_version()):
        validate.validate(document, version, strict=True)
    assert "namespace" not in document["metadata"], "manifests must not fix the namespace"


def test_the_schemas_reject_unknown_fields() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate comes with the test extra")
    wrong = manifest("StatefulSet", "seed-learner")
    wrong["spec"]["replica"] = 1
    with pytest.raises(validate.ValidationError):
        validate.validate(wrong, validate.latest_version(), strict=True)


def test_the_kustomization_lists_the_manifests() -> None:
    kustomization = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    resources = set(kustomization["resources"])
    there = {path.name for path in KUBERNETES.glob("*.yaml")} - {"kustomization.yaml"}
    assert there - resources == {"token.yaml", "actors-autoscaler.yaml"} and resources <= there
    images = {container["image"] for document in WORKLOADS for container in containers(document)}
    assert images == {image["name"] for image in kustomization["images"]}
    if shutil.which("kubectl"):
        done = subprocess.run(["kubectl", "kustomize", str(KUBERNETES)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr


def test_no_command_line_contains_the_token() -> None:
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", *(p for p in EXAMPLES.rglob("*") if p.is_file())]
    lines = [line.strip("# ") for page in pages for line in page.read_text().splitlines() if "seed token new" in line]
    piped = "seed token new --print | kubectl create secret generic seed-token --from-file=token=/dev/stdin"
    assert [line for line in lines if "kubectl" in line] == [piped] * 2
    for line in lines:
        # Keywords and assignments of the shell start no process whose command line others could list.
        allowed = re.match(r'(\(umask 077; echo "|export |)SEED_TOKEN=\$\(', line)
        assert allowed or "$(" not in line and "`seed token new --print`" not in line, line


def containers(document: dict[str, Any]) -> list[dict[str, Any]]:
    return list(document["spec"]["template"]["spec"]["containers"])


def test_the_learner_of_the_manifests() -> None:
    document = manifest("StatefulSet", "seed-learner")
    (container,) = containers(document)
    config = check_learner(container["args"], {})
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"grpc": config.net.grpc_port, "zmq": config.net.zmq_port, "metrics": config.net.metrics_port}
    assert config.net.metrics_host == "0.0.0.0", "probes come from outside the container"
    paths = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    annotations = document["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(config.net.metrics_port)
    assert document["spec"]["replicas"] == 1
    assert document["spec"]["serviceName"] == manifest("Service", "seed-learner-pods")["metadata"]["name"]
    assert manifest("Service", "seed-learner-pods")["spec"]["clusterIP"] == "None"
    (claim,) = document["spec"]["volumeClaimTemplates"]
    (mount,) = (m for m in container["volumeMounts"] if m["name"] == claim["metadata"]["name"])
    logdir = parse(container["args"])["logdir"]
    assert logdir.is_relative_to(mount["mountPath"]), "the run outlives the pod"


def test_the_actors_of_the_manifests_find_the_learner() -> None:
    (container,) = containers(manifest("Deployment", "seed-actors"))
    given = parse(container["args"])
    assert given["command"] == "actor"
    host, _, port = given["connect"].partition(":")
    service = manifest("Service", host)
    learner = manifest("StatefulSet", "seed-learner")
    named = {p["port"]: p["targetPort"] for p in service["spec"]["ports"]}
    assert named == {p["containerPort"]: p["name"] for p in containers(learner)[0]["ports"]}
    assert named[int(port)] == "grpc"
    labels = learner["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    policy = manifest("NetworkPolicy", "seed-learner")
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert manifest("HorizontalPodAutoscaler", "seed-actors")["spec"]["scaleTargetRef"]["name"] == "seed-actors"


@pytest.mark.parametrize("document", WORKLOADS, ids=lambda document: document["metadata"]["name"])
def test_workloads_have_only_the_rights_they_need(document: dict[str, Any]) -> None:
    pod = document["spec"]["template"]["spec"]
    assert document["spec"]["selector"]["matchLabels"].items() <= (
        document["spec"]["template"]["metadata"]["labels"].items()
    )
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
    assert pod["terminationGracePeriodSeconds"] > STOP_SECONDS
    assert pod["automountServiceAccountToken"] is False
    for container in pod["containers"]:
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] and security["capabilities"] == {"drop": ["ALL"]}
        assert security["allowPrivilegeEscalation"] is False
        environ = {entry["name"]: entry for entry in container["env"]}
        reference = environ["SEED_TOKEN"]["valueFrom"]["secretKeyRef"]
        secret = manifest("Secret", reference["name"])
        assert "value" not in environ["SEED_TOKEN"]
        with pytest.raises(RefusedError):  # the placeholder must be replaced
            Token(secret["stringData"][reference["key"]], "the placeholder")
        mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert environ["HOME"]["value"] in mounted, "the root file system is read-only"


# -- systemd --------------------------------------------------------------------------------------------------------


def unit(path: Path) -> dict[str, list[str]]:
    """The values of a unit file by key, in order."""
    values: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if line and line[0] not in "#;[":
            key, _, value = line.partition("=")
            values.setdefault(key, []).append(value)
    return values


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_units_run_valid_commands_and_stop_cleanly(path: Path) -> None:
    values = unit(path)
    (command,) = values["ExecStart"]
    program, *arguments = shlex.split(command.replace("%l", "machine").replace("%i", "1"))
    assert program == "/opt/seed/bin/seed"
    if "learner" in path.stem:
        assert check_learner(arguments, {}).net.metrics_port > 0
        assert parse(arguments)["logdir"].is_relative_to("/var/lib/" + values["StateDirectory"][0])
    else:
        assert parse(arguments)["command"] == "actor"
    never = {int(status) for status in values["RestartPreventExitStatus"][0].split()}
    assert never == {EXIT_DONE, EXIT_USAGE, EXIT_REFUSED}
    assert values["Restart"] == ["on-failure"] and values["KillSignal"] == ["SIGTERM"]
    assert int(values["TimeoutStopSec"][0]) > STOP_SECONDS
    assert values["User"] == ["seed"] and "SEED_TOKEN" not in " ".join(values["ExecStart"] + values["Environment"])


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_accepts_the_units(path: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    copy = tmp_path / path.name.replace("@", "@1")
    copy.write_text(path.read_text().replace("/opt/seed/bin/seed", sys.executable))
    done = subprocess.run([analyze, "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=60)
    # It warns of unknown keys and continues.
    assert done.returncode == 0 and path.stem.partition("@")[0] not in done.stderr, done.stderr


# -- Docker ---------------------------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M).replace("\\\n", " ")
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in text.splitlines() if line.strip()]


def values(name: str) -> list[str]:
    return [value for instruction, value in instructions() if instruction == name]


def image_environ() -> dict[str, str]:
    (environ,) = values("ENV")
    return dict(part.split("=", 1) for part in shlex.split(environ))


def test_the_image_runs_seed_as_an_unprivileged_user() -> None:
    assert {value.partition(" ")[0] for value in values("FROM")} == {"python:3.11-slim"}
    assert [json.loads(value) for value in values("ENTRYPOINT")] == [["seed"]]
    (user,) = values("USER")
    pod = WORKLOADS[0]["spec"]["template"]["spec"]
    assert user == "{runAsUser}:{runAsGroup}".format(**pod["securityContext"])
    assert values("STOPSIGNAL") == ["SIGTERM"] and values("VOLUME") == ["/runs"]
    assert "apt-get" not in (ROOT / "Dockerfile").read_text()
    net = load_config("pong_vtrace", environ=image_environ()).config.net
    assert values("EXPOSE") == [f"{net.grpc_port} {net.zmq_port} {net.metrics_port}"]
    assert net.metrics_host == "0.0.0.0"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (comment,) = re.findall(r"--build-arg EXTRAS=(\S+)", (ROOT / "Dockerfile").read_text())
    assert set(comment.split(",")) <= set(extras)


def test_the_package_builds_from_the_files_that_the_image_copies(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling comes with the test extra")
    ignored = (ROOT / ".dockerignore").read_text().split()
    source = tmp_path / "source"
    source.mkdir()
    for copied in values("COPY"):
        *names, target = copied.split()
        if names[0].startswith("--from"):
            continue
        for name in names:
            assert f"!{name}" in ignored, f"{name} is excluded from the build context"
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, source / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, source / target)
    script = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=source, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(tmp_path / done.stdout.split()[-1]) as wheel:
        assert {"seedcli/cli/main.py", "seedcli/presets/pong_vtrace.toml"} <= set(wheel.namelist())


@pytest.mark.parametrize(
    ("role", "status", "healthy"), [("learner", 200, True), ("learner", 503, False), ("actor", 503, True)]
)
def test_the_image_checks_the_health_of_a_learner(tmp_path: Path, role: str, status: int, healthy: bool) -> None:
    (check,) = values("HEALTHCHECK")
    program, flag, code = json.loads(check[check.index("CMD ") + 4 :])
    assert (program, flag) == ("python", "-c")
    asked: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    # The first process of the container, as /proc shows it.
    (tmp_path / "cmdline").write_bytes(b"\0".join([b"python", b"/opt/seed/bin/seed", role.encode(), b"--no-live", b""]))
    code = code.replace("/proc/1/cmdline", str(tmp_path / "cmdline"))
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        environ = {"SEED_NET__METRICS_PORT": str(server.server_port)}
        done = subprocess.run([sys.executable, flag, code], env=environ, capture_output=True, timeout=30)
        server.shutdown()
    assert (done.returncode == 0) == healthy
    assert asked == (["/healthz"] if role == "learner" else [])


def test_the_compose_file_has_valid_commands() -> None:
    services = yaml.safe_load((EXAMPLES / "docker" / "compose.yaml").read_text())["services"]
    config = check_learner(services["learner"]["command"], image_environ())
    assert services["learner"]["ports"] == [f"127.0.0.1:{config.net.metrics_port}:{config.net.metrics_port}"]
    actor = parse(services["actor"]["command"])
    assert (actor["command"], actor["connect"]) == ("actor", f"learner:{config.net.grpc_port}")
    for service in services.values():
        assert int(service["stop_grace_period"].removesuffix("s")) > STOP_SECONDS
        assert service["environment"]["SEED_TOKEN"].startswith("${SEED_TOKEN:?"), "the file contains no token"
    assert (EXAMPLES / "docker" / services["learner"]["build"] / "Dockerfile").resolve() == ROOT / "Dockerfile"


def test_docker_accepts_the_dockerfile() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True, timeout=30).returncode:
        pytest.skip("no docker daemon answers here")
    done = subprocess.run([docker, "build", "--check", str(ROOT)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


# -- the check itself -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [["learner", "--no-such-flag"], ["no-such-command"], ["actor", "--envs", "many"]])
def test_an_invalid_command_is_detected(wrong: list[str]) -> None:
    with pytest.raises(Exception, match=r"(?i)no.such|valid"):
        parse(wrong)
