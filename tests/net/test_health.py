"""grpc.health.v1 on the learner's gRPC port: the clients it serves, and its status when the learner stops."""

from __future__ import annotations

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from seedcli.net.security.keys import Security, tls_identity
from tests.net.harness import LIMIT, Learner
from tests.net.protected import MINE


@pytest.mark.parametrize("kind", ["grpc"])
def test_the_health_service_answers(learner: Learner) -> None:
    with grpc.insecure_channel(learner.server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "seed.Actor"):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=LIMIT)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("kind", ["grpc+token"])
def test_the_health_service_answers_clients_with_the_actors_certificate(kind: str, learner: Learner) -> None:
    identity = tls_identity(Security(MINE), "actor")
    options = [("grpc.ssl_target_name_override", identity.name)]
    for key, chain in ((identity.key, identity.chain), (None, None)):
        credentials = grpc.ssl_channel_credentials(identity.roots, key, chain)
        with grpc.secure_channel(learner.server.address, credentials, options=options) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            if key is not None:
                answer = check(health_pb2.HealthCheckRequest(), timeout=LIMIT)
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
                continue
            with pytest.raises(grpc.RpcError) as caught:
                check(health_pb2.HealthCheckRequest(), timeout=LIMIT)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("kind", ["grpc"])
def test_health_watchers_are_notified_when_the_learner_stops(learner: Learner) -> None:
    with grpc.insecure_channel(learner.server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watches = [
            stub.Watch(health_pb2.HealthCheckRequest(service=name), timeout=LIMIT) for name in ("", "seed.Actor")
        ]
        for watch in watches:
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        learner.close()
        for watch in watches:
            assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
