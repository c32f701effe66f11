"""The program as users start it: processes, signals, exit codes."""

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

START_TIMEOUT_S = 120  # generous: CI machines are shared
TRIOLET = [sys.executable, "-m", "triolet"]


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRIOLET_")}
    return {**kept, "TRIOLET_CACHE": str(tmp_path / "cache"), "TRIOLET_THREADS": "1"}


@contextmanager
def serving(
    environment: Mapping[str, str], *options: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server on a free port and its URL, taken from the ready line."""
    command = [*TRIOLET, "serve", "tiny-random", "--port", "0", *options]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], START_TIMEOUT_S)[0], "not ready in time"
            line = process.stdout.readline()
            match = re.fullmatch(r"triolet serves tiny-random on (http://127\.0\.0\.1:\d+)\n", line)
            assert match, (line, process.stderr.read() if process.stderr and not line else "")
            yield process, match[1]
        finally:
            process.kill()


def run(
    environment: Mapping[str, str], *arguments: str, timeout: float = START_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TRIOLET, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def test_serve_answers_prints_what_it_chose_and_ends_on_sigterm(
    environment: Mapping[str, str],
) -> None:
    with serving(environment, "--max-num-seqs", "7", "--api-keys", "key") as (process, url):
        with openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0) as client:
            assert [model.id for model in client.models.list()] == ["tiny-random"]
            answer = client.chat.completions.create(
                model="tiny-random",
                messages=[{"role": "user", "content": "hello"}],
                max_tokens=5,
                temperature=0,
                extra_body={"ignore_eos": True},
            )
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 5
            with pytest.raises(openai.AuthenticationError):
                client.with_options(api_key="other").models.list()
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0
    assert "tiny-random, LlamaForCausalLM" in stderr
    assert "float32" in stderr or "bfloat16" in stderr
    assert "KV blocks of 32 tokens" in stderr
    assert "7 sequences and 1024 tokens in a step" in stderr
    assert f"curl {url}/v1/chat/completions" in stderr
    assert "Traceback" not in stderr


def test_ctrl_c_ends_a_server_in_order(environment: Mapping[str, str]) -> None:
    with serving(environment) as (process, _):
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0
        assert "Traceback" not in stderr


def test_taken_port_is_one_sentence(environment: Mapping[str, str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run(environment, "serve", "tiny-random", "--port", str(port))
    assert done.returncode == 2
    assert done.stderr.startswith(f"triolet: port {port} on 127.0.0.1 is taken")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["./no-such-model"], "there is no file or directory './no-such-model'"),
        (["tiny-random:gpt9"], "there is no tiny-random:gpt9"),
        (["tiny-random", "--max-model-len", "100000"], "max_model_len 100000 is more than"),
    ],
)
def test_model_that_cannot_be_served_is_one_sentence(
    environment: Mapping[str, str], arguments: list[str], message: str
) -> None:
    done = run(environment, "serve", "--port", "0", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("triolet: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert done.stdout == ""


def test_what_only_the_worker_can_refuse_ends_in_one_sentence(
    environment: Mapping[str, str],
) -> None:
    done = run(environment, "serve", "tiny-random", "--port", "0", "--device", "tpu")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("triolet: device must be 'auto', 'cpu'")
    assert done.stdout == ""


def test_logs_are_json_where_asked(environment: Mapping[str, str]) -> None:
    with serving(environment, "--log-format", "json") as (process, _):
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)
    records = [json.loads(line) for line in stderr.splitlines() if line.startswith("{")]
    assert records
    assert all({"event", "level", "logger", "timestamp"} <= record.keys() for record in records)


class Terminal:
    """A program on a pseudo-terminal."""

    def __init__(self, environment: Mapping[str, str], *arguments: str) -> None:
        self.output = ""
        pid, self._fd = pty.fork()
        if pid == 0:
            os.execve(sys.executable, [*TRIOLET, *arguments], {**environment, "TERM": "xterm"})
        self.pid = pid

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def wait_for(self, text: str, since: int = 0) -> int:
        """Wait until the text appears; returns where it ends."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while text not in self.output[since:]:
            assert time.monotonic() < deadline, f"no {text!r} in {self.output!r}"
            if select.select([self._fd], [], [], 1)[0]:
                try:
                    self.output += os.read(self._fd, 4096).decode(errors="replace")
                except OSError as error:  # how Linux tells the end of a pseudo-terminal
                    raise AssertionError(f"ended before {text!r}: {self.output!r}") from error
        return self.output.index(text, since) + len(text)

    def wait_exit(self) -> int:
        """Wait for the end; returns the exit code."""
        while True:
            try:
                if not os.read(self._fd, 4096):
                    break
            except OSError:
                break
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_ctrl_c_in_a_chat_stops_the_answer_not_the_program(
    environment: Mapping[str, str],
) -> None:
    terminal = Terminal(environment, "chat", "tiny-random", "--log-level", "error")
    at = terminal.wait_for(">>> ")
    terminal.type("hello\r")
    at = terminal.wait_for("\n", at)
    time.sleep(0.3)  # the answer is running; a terminal has no event for that
    terminal.type("\x03")
    at = terminal.wait_for(">>> ", at)
    terminal.type("/system be nice\r")
    at = terminal.wait_for("the conversation begins again", at)
    terminal.type("/exit\r")
    assert terminal.wait_exit() == 0
    assert "Traceback" not in terminal.output


def test_chat_with_piped_input_ends_with_it(environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        [*TRIOLET, "chat", "tiny-random"],
        env=environment,
        input="/help\n",
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0
    assert "Ctrl-C          stop the answer" in done.stdout


def test_doctor_finds_this_installation_healthy(environment: Mapping[str, str]) -> None:
    done = run(environment, "doctor", "--json")
    findings = {finding["name"]: finding for finding in json.loads(done.stdout)}
    assert done.returncode == 0, done.stdout
    assert {"python", "torch", "kernels", "cores", "memory", "cache"} <= findings.keys()


def test_output_can_be_cut_off(environment: Mapping[str, str]) -> None:
    """As in `triolet config show | head -1`."""
    with subprocess.Popen(
        [*TRIOLET, "config", "show"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        stderr = process.stderr.read()
    assert process.returncode == 1
    assert stderr == b""
