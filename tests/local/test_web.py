"""``dljob up --web``: the page in a process of its own, which shows what happens and ends with the controller."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from addons.web.tests.page_api import insist
from tests.ctl.running import LONGEST_S, Command
from tests.local.ups import find_processes, going, replay

PRINTED = re.compile(r"The page is at http://([\w.-]+):([0-9]+)/#token=([\w-]{43})\n")

real = pytest.mark.processes


class Page:
    """Asks the page's server of a ``dljob up``."""

    def __init__(self, up):
        [(self.host, port, self.token)] = PRINTED.findall(up.log.read_text(encoding="utf-8"))
        self.address = f"http://localhost:{port}/"
        [self.pid] = [pid for pid in find_processes(up.root) if b"dljob_web.machine" in words(pid)]
        self._handle = os.pidfd_open(self.pid)

    def ask(self, path, body=None, **headers):
        given = {"Authorization": f"Bearer {self.token}", **headers}
        request = urllib.request.Request(f"{self.address}{path}", body, given)  # noqa: S310 - ours
        with urllib.request.urlopen(request, timeout=LONGEST_S) as answer:  # noqa: S310 - as above
            return answer.read()

    def post(self, path, document):
        return self.ask(path, json.dumps(document).encode())

    def refusal(self, path, **headers):
        with pytest.raises(urllib.error.HTTPError) as refused:
            self.ask(path, **headers)
        with refused.value as answer:
            return answer.code

    def shows(self):
        return json.loads(self.ask("api/v1/page"))

    def insist_on_end(self):
        """Wait until its process has ended; its port is then free again."""
        assert select.select([self._handle], [], [], LONGEST_S)[0]
        os.close(self._handle)
        with pytest.raises(urllib.error.URLError):
            self.ask("")


def words(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.story
@real
def test_page_shows_events_and_ends_with_its_controller(root):
    state = root / "state"
    with going(state, "--cluster", "1x2", "--web") as up:
        page = Page(up)
        assert page.refusal("api/v1/page", Authorization="") == 401
        assert page.refusal("", Host="evil.example") == 403
        up.submit(replay("short", root, iterations=1, faster=1000.0))
        up.until_phase("short", "Completed")
        up.until(lambda: [job["outcome"] for job in page.shows()["jobs"]] == ["Completed"])
        assert page.shows()["policy"] == "foresight"
        assert len(page.shows()["nodes"][0]["lanes"]) == 2
        # The token is printed once, and kept nowhere.
        written = b"".join(path.read_bytes() for path in state.glob("*.log"))
        assert page.token.encode() not in written + words(page.pid)
        assert up.end(signal.SIGINT) == 0
        page.insist_on_end()


@pytest.mark.story
@real
def test_page_api_agrees_with_the_verbs(root):
    with going(root / "state", "--cluster", "1x2", "--policy", "fifo", "--web") as up:
        page = Page(up)

        def ask(path, body=None, *, route=""):
            told = json.loads(page.ask(f"api/v1/{path}", body and json.dumps(body).encode()))
            insist("POST" if body else "GET", f"/api/v1/{route or path}", 200, told)
            return told

        up.submit(replay("trains", root, iterations=10_000, faster=1.0, gpus={"options": [2]}))
        up.submit(replay("waits", root, iterations=10_000, faster=1.0, gpus={"options": [2]}))
        up.until(lambda: ask("logs/trains", route="logs/{name}")["lines"])
        up.until(lambda: [item["job"] for item in ask("queue")["items"]] == ["waits"])
        turns = ("ahead", "expectedStart", "unknownBecause")
        [shown] = ask("queue")["items"]
        jobs = {job["metadata"]["name"]: job for job in ask("jobs")["items"]}
        assert {name: shown.get(name) for name in turns} == {
            name: jobs["waits"]["status"]["queue"].get(name) for name in turns
        }
        why = ask("jobs/waits", route="jobs/{name}")
        assert why["message"].startswith(shown["message"])
        for path in ("nodes", "page", "policies", "what-if"):
            ask(path)
        now, then = ask("what-if", {"job": "waits", "priority": 1})["futures"]
        assert [len(each["jobs"]) for each in (now, then)] == [2, 2]
        new = replay("new", root, iterations=10_000, faster=1.0, gpus={"options": [2]})
        [effect, *_] = ask("plan", new)["items"]
        assert (effect["job"], effect["step"], effect["queue"]["ahead"]) == ("new", "wait", 1)
        again = {job["metadata"]["name"]: job for job in ask("jobs")["items"]}
        assert {name: job["spec"] for name, job in again.items()} == {
            name: job["spec"] for name, job in jobs.items()
        }


@real
def test_the_page_answers_to_the_names_that_it_was_given_and_to_no_others(root):
    hosts = ("--web-host", "GPU-7.lan", "--web-host", "gpus.example.org")
    web = ("--web", "0.0.0.0:0", "--web-unencrypted", *hosts)
    with going(root / "state", "--virtual-gpus", 1, *web) as up:
        page = Page(up)
        assert page.host == "gpu-7.lan"
        for host in ("gpu-7.lan:80", "gpus.example.org", "127.0.0.1:8265", "192.0.2.1"):
            assert page.ask("api/v1/page", Host=host)
        for host in ("evil.example", "x.gpus.example.org", "example.org", "gpu-7.lan.evil.example"):
            assert page.refusal("api/v1/page", Host=host) == 403


@real
def test_no_process_is_left_of_a_controller_that_is_killed(root):
    with going(root / "state", "--virtual-gpus", 1, "--web") as up:
        page = Page(up)
        assert page.ask("")
        up.end(signal.SIGKILL)
        page.insist_on_end()


@pytest.mark.story
@real
def test_dljob_web_serves_the_page_until_ctrl_c_and_no_command_line_has_its_token(root):
    state, seen = root / "state", root / "seen"
    browser = root / "browser"
    browser.write_text(
        f'#!/bin/sh\ntr "\\0" "\\n" < /proc/$$/cmdline > {seen}.new\n'
        f'cat "${{1#file://}}" >> {seen}.new\nmv {seen}.new {seen}\n'
    )
    browser.chmod(0o755)
    with going(state, "--virtual-gpus", 2) as up:
        up.submit(replay("short", root, iterations=1, faster=1000.0))
        up.until_phase("short", "Completed")
        command = [*(sys.executable, "-c", "from dljob.cli.main import main; main()", "web")]
        process = subprocess.Popen(
            [*command, "--state", state],
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "DISPLAY": ":0",
                "BROWSER": str(browser),
            },
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            [(host, port, token)] = PRINTED.findall(line)
            url = f"http://{host}:{port}/#token={token}"
            up.until(seen.exists)
            typed, _, file = seen.read_text(encoding="utf-8").partition("file://")
            assert token not in typed + file.splitlines()[0]
            assert f"url={url}" in file
            request = urllib.request.Request(
                f"http://{host}:{port}/api/v1/page", None, {"Authorization": f"Bearer {token}"}
            )
            with urllib.request.urlopen(request, timeout=LONGEST_S) as answer:  # noqa: S310 - ours
                [job] = json.load(answer)["jobs"]
            assert (job["name"], job["outcome"]) == ("short", "Completed")
            taken = up("web", "--no-browser", "--port", port)
            assert (taken.status, "leave --port out" in taken.stderr) == (1, True)
            process.send_signal(signal.SIGINT)
            assert process.wait(LONGEST_S) == 130
        finally:
            process.kill()
            process.communicate(timeout=LONGEST_S)


def test_without_a_server_dljob_web_names_the_remedy(root, capsys):
    result = Command(capsys)("web", "--state", root / "state")
    assert (result.status, result.stdout) == (1, "")
    assert "no dljob up answers at" in result.stderr


def test_where_others_could_look_is_refused_with_the_reason(root, capsys):
    whole = "write it whole, without a port"
    for options, error in (
        (("--web", "8080"), "8080 is not an address with a port; write [ADDRESS]:PORT"),
        (("--web", "127.0.0.1:99999"), "is not an address with a port"),
        (("--web", "0.0.0.0:8080"), "other machines reach that address"),
        (("--web", "[::]:8080"), "could read the page and its token"),
        (("--web", "gpu-7.lan:8080"), "or allow it with --web-unencrypted"),
        (("--web-unencrypted",), "add --web ADDRESS:PORT"),
        (("--web-host", "gpu-7.lan"), "says how browsers reach --web; add --web"),
        (("--web", "--web-host", "*.lan"), "*.lan is not the name of a machine"),
        (("--web", "--web-host", ""), whole),
        (("--web", "--web-host", "gpu-7.lan:80"), whole),
        (("--web", "--system"), "leave --web out, and let each user run dljob web"),
    ):
        result = Command(capsys)("up", "--virtual-gpus", 1, "--state", root / "state", *options)
        assert (result.status, result.stdout) == (2, ""), options
        assert error in result.stderr, options
        assert not (root / "state").exists()
