"""Test `multistep logs --service`."""

from __future__ import annotations

from tests.unit.cli.conftest import Invoke
from tests.unit.cli.fakes import CliCluster, status
from tests.unit.cli.test_logs import COMPLETE, RUNNING, stored, story


def test_a_services_output_is_read_from_its_container_while_the_pod_exists(cluster: CliCluster, invoke: Invoke) -> None:
    story(cluster, RUNNING)
    cluster.served["t-1/svc-my-db"] = b"one\ntwo\xff\n"
    assert invoke("logs", "t", "--service", "my.db", "--raw").stdout_bytes == b"one\ntwo\xff\n"
    assert invoke("logs", "t", "-f", "--service", "my.db", "--tail", "1").stdout_bytes == b"two\\xff\n"
    refused = invoke("logs", "t", "--service", "web")
    assert refused.exit_code == 2 and "the output of service 'web' in pod t-1 cannot be read" in refused.stderr


def test_a_services_output_is_in_the_results_afterwards(cluster: CliCluster, invoke: Invoke) -> None:
    story(cluster, COMPLETE)
    stored(cluster, "services/db.log", b"one\ntwo\n")
    assert invoke("logs", "t", "--service", "db").stdout == "one\ntwo\n"
    assert invoke("logs", "t", "--service", "db", "--tail", "1").stdout == "two\n"
    missing = invoke("logs", "t", "--service", "web")
    assert missing.exit_code == 2 and "the results have no output of a service 'web'" in missing.stderr


def test_a_service_has_no_steps_and_no_output_before_there_is_a_pod(cluster: CliCluster, invoke: Invoke) -> None:
    story(cluster, status("Pending"))
    assert "has no pod yet" in invoke("logs", "t", "--service", "db").stderr
    assert "cannot be combined" in invoke("logs", "t", "--service", "db", "--step", "1").stderr
