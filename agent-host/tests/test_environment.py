"""Tests of GuestEnvironment against a fake runner."""

from __future__ import annotations

import asyncio
import tarfile
from pathlib import Path

import pytest

from multistep_host.environment import GuestEnvironment
from multistep_host.frames import GuestError
from multistep_host.guest import Admission
from multistep_host.transfer import unpack_directory
from runner import Runner
from waiting import cancelled


async def test_a_commands_streams_are_apart_and_its_exit_code_is_kept(environment: GuestEnvironment) -> None:
    result = await environment.exec("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.return_code) == ("out\n", "err\n", 3)


async def test_a_command_that_a_signal_ends_has_the_exit_code_of_a_shell(environment: GuestEnvironment) -> None:
    assert (await environment.exec("kill -TERM $$")).return_code == 128 + 15


async def test_a_commands_timeout_raises_what_harbors_docker_environment_raises(environment: GuestEnvironment) -> None:
    with pytest.raises(RuntimeError, match="Command timed out after 1 seconds"):
        await environment.exec("sleep 30", timeout_sec=1)


async def test_variables_have_harbors_precedence(environment: GuestEnvironment) -> None:
    environment.configure({"A": "task", "B": "task", "C": "task"}, None)
    with environment.scoped_exec_env({"A": "agent"}):
        result = await environment.exec("echo $A $B $C", env={"A": "command", "B": "command"})
    assert result.stdout == "agent command task\n"


async def test_programs_of_the_agents_image_come_before_others(environment: GuestEnvironment, tmp_path: Path) -> None:
    program = tmp_path / "git"
    program.write_text("#!/bin/sh\necho mine\n")
    program.chmod(0o755)
    environment.configure({}, None, str(tmp_path))
    assert (await environment.exec("git; type -P sh")).stdout.splitlines()[0] == "mine"
    environment.configure({}, None)
    assert (await environment.exec("type -P git || true")).stdout != f"{program}\n"


async def test_a_command_runs_as_the_default_user_unless_it_names_one(environment: GuestEnvironment, runner: Runner) -> None:
    with environment.with_default_user("agent"):
        await environment.exec("true")
        await environment.exec("true", user="root")
        await environment.exec("true", user=1000)
    await environment.exec("true")
    assert [request["user"] for request in runner.requests] == ["agent", "root", "1000", ""]


async def test_a_command_runs_in_the_tasks_working_directory_unless_it_names_one(
    environment: GuestEnvironment, tmp_path: Path
) -> None:
    environment.configure({}, str(tmp_path))
    assert (await environment.exec("pwd")).stdout == f"{tmp_path}\n"
    assert (await environment.exec("pwd", cwd="/usr")).stdout == "/usr\n"


async def test_a_command_that_cannot_start_fails_like_one_of_docker_exec(environment: GuestEnvironment) -> None:
    result = await environment.exec("true", cwd="/no/such/place")
    assert result.return_code == 126
    assert "/no/such/place" in str(result.stderr)


async def test_a_refused_user_is_a_failed_command(environment: GuestEnvironment, runner: Runner) -> None:
    runner.refusal = {"code": "Refused", "message": "this guest may act as agent only"}
    result = await environment.exec("true", user="root")
    assert (result.return_code, result.stderr) == (126, "this guest may act as agent only")


async def test_is_dir_and_is_file_and_empty_dirs_work_as_harbor_defines_them(environment: GuestEnvironment, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    assert await environment.is_file(str(tmp_path / "full/file"))
    assert await environment.is_dir(str(tmp_path / "full"))
    await environment.empty_dirs([tmp_path / "full"], chmod=True)
    assert list((tmp_path / "full").iterdir()) == []


async def test_files_and_directories_arrive_with_modes_and_links(environment: GuestEnvironment, tmp_path: Path) -> None:
    source, there, back = tmp_path / "source", tmp_path / "there", tmp_path / "back"
    (source / "deep").mkdir(parents=True)
    (source / "deep/run.sh").write_text("#!/bin/sh")
    (source / "deep/run.sh").chmod(0o755)
    (source / "link").symlink_to("deep/run.sh")
    await environment.upload_dir(source, str(there))
    await environment.upload_file(source / "link", str(there / "copy"))
    await environment.download_dir(str(there), back)
    await environment.download_file(str(there / "copy"), tmp_path / "new/copy")
    assert (back / "deep/run.sh").stat().st_mode & 0o777 == 0o755
    assert (back / "link").readlink() == Path("deep/run.sh")
    assert (tmp_path / "new/copy").read_text() == "#!/bin/sh"


async def test_a_download_of_another_kind_names_the_path(environment: GuestEnvironment, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="/no/such in the environment is missing"):
        await environment.download_file("/no/such", tmp_path / "x")
    with pytest.raises(RuntimeError, match="is not a file"):
        await environment.download_file(str(tmp_path), tmp_path / "x")


async def test_a_damaged_download_is_an_error(environment: GuestEnvironment, runner: Runner, tmp_path: Path) -> None:
    runner.damaged = True
    with pytest.raises(GuestError, match="damaged"):
        await environment.download_dir(str(tmp_path), tmp_path / "x")


def test_a_hostile_archive_leaves_the_directory_alone_and_keeps_the_good_files(tmp_path: Path) -> None:
    def link(name: str, target: str) -> tarfile.TarInfo:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = tarfile.SYMTYPE, target
        return member

    with (tmp_path / "tar").open("w+b") as archive:
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for name in ("0/../../evil", "0/out/evil", "0//etc/evil", "0/good"):
                if name == "0/out/evil":
                    tar.addfile(link("0/out", "../.."))
                tar.addfile(tarfile.TarInfo(name))
        unpack_directory(archive, tmp_path / "a/b/target")
    assert not [path for path in tmp_path.rglob("evil") if not path.is_relative_to(tmp_path / "a/b/target")]
    assert (tmp_path / "a/b/target/good").exists()


async def test_a_cancelled_command_is_killed(environment: GuestEnvironment, tmp_path: Path) -> None:
    await cancelled(environment.exec, tmp_path / "lock")


async def test_a_dismissed_guest_runs_nothing_and_its_command_is_lost(environment: GuestEnvironment) -> None:
    running = asyncio.create_task(environment.exec("sleep 30"))
    await asyncio.sleep(0.2)
    environment.guest.dismiss()
    with pytest.raises(GuestError):
        await running
    with pytest.raises(GuestError, match="admits no commands"):
        await environment.exec("true")


async def test_a_process_that_does_not_know_the_token_is_no_runner(environment: GuestEnvironment, runner: Runner) -> None:
    runner.impostor = True
    with pytest.raises(GuestError, match="does not know the admission's token"):
        await environment.exec("true")
    assert runner.requests == []


async def test_a_wrong_token_is_not_admitted(environment: GuestEnvironment, runner: Runner) -> None:
    environment.guest.admit(Admission("another", runner.admission.token, runner.socket))
    with pytest.raises(GuestError, match="does not admit the agent host"):
        await environment.exec("true")


async def test_a_missing_runner_is_an_error_that_says_so(environment: GuestEnvironment) -> None:
    environment.guest.admit(Admission("1", bytes(32), "multistep-test/nobody"))
    with pytest.raises(GuestError, match="cannot be reached"):
        await environment.exec("true")


async def test_many_commands_at_once_share_the_runners_connections(environment: GuestEnvironment) -> None:
    results = await asyncio.gather(*(environment.exec(f"echo {number}") for number in range(100)))
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(100)]


def test_the_admissions_token_is_in_no_representation(runner: Runner) -> None:
    assert repr(runner.admission.token) not in repr(runner.admission)
