"""The page in a real browser: Chromium, without a screen, driven through chromedriver's HTTP interface.

`python -m benchmarks.browser report/index.html`: on a phone and on a desk, in light, dark and print, there are no
messages in the console, nothing is fetched, every plot can be seen whole, and the page does not scroll sideways.
Screenshots are kept beside the page.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DRIVER, BROWSERS = "chromedriver", ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip
PHONE, DESK, SHEET = (390, 844), (1280, 900), (720, 1020)
# What it is looked at with: the window, the medium, the colours that are preferred.
SIGHTS = {
    "phone-light": (PHONE, "screen", "light"),
    "phone-dark": (PHONE, "screen", "dark"),
    "desktop-light": (DESK, "screen", "light"),
    "desktop-dark": (DESK, "screen", "dark"),
    "print": (SHEET, "print", "dark"),
}
_TALLEST = 16_000  # pixels; longer screenshots are cut

# What is seen: of every figure the plots that show, and of each of these its box and how much is drawn in it.
_LOOK = """
const figures = [...document.querySelectorAll("figure")].map(figure => ({
  name: figure.id,
  plots: [...figure.querySelectorAll("svg")].map(svg => {
    const box = svg.getBoundingClientRect(), marks = [...svg.querySelectorAll("path, use, text")];
    const drawn = marks.map(mark => mark.getBoundingClientRect()).filter(m => m.width || m.height);
    const outside = drawn.filter(m => m.left < box.left - 2 || m.right > box.right + 2);
    const words = [...svg.querySelectorAll("text")].map(t => t.getBoundingClientRect()).filter(t => t.height);
    return {left: box.left, right: box.right, width: box.width, height: box.height, drawn: drawn.length,
            outside: outside.length, letters: Math.min(...words.map(t => t.height))};
  }).filter(plot => plot.width > 0 && plot.height > 0),
}));
return {
  figures,
  width: document.documentElement.clientWidth,
  scroll: Math.max(document.documentElement.scrollWidth, document.body.scrollWidth),
  height: document.documentElement.scrollHeight,
  fetched: performance.getEntriesByType("resource").map(e => e.name).filter(n => !n.startsWith("data:")),
  paper: getComputedStyle(document.body).backgroundColor,
};
"""


def why_absent() -> str:
    """'' where there is a browser, otherwise what is missing."""
    if not any(map(shutil.which, BROWSERS)):
        return "no chromium on this machine"
    return "" if shutil.which(DRIVER) else "no chromedriver on this machine (Debian: chromium-driver)"


class Browser:
    """One session; `call` is a command of the WebDriver protocol, `tools` one of Chromium's own."""

    def __init__(self, address: str, profile: str) -> None:
        self._address = address
        flags = [*FLAGS, f"--user-data-dir={profile}", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        binary = next(path for path in map(shutil.which, BROWSERS) if path)
        wanted = {"goog:chromeOptions": {"args": flags, "binary": binary}, "goog:loggingPrefs": {"browser": "ALL"}}
        session = self._send("/session", {"capabilities": {"alwaysMatch": wanted}})
        self._address += f"/session/{session['sessionId']}"

    def call(self, path: str, **arguments: Any) -> Any:
        return self._send(path, arguments)

    def tools(self, command: str, **arguments: Any) -> Any:
        return self.call("/goog/cdp/execute", cmd=command, params=arguments)

    def close(self) -> None:
        self._send("", None, "DELETE")

    def _send(self, path: str, body: Any, method: str = "POST") -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._address + path, data, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=120) as answer:
            return json.load(answer)["value"]


@contextmanager
def browser() -> Iterator[Browser]:
    """A fresh browser with an empty profile."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        driver = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert driver.stdout is not None
        try:
            said = next(line for line in driver.stdout if "started successfully on port" in line)
            session = Browser(f"http://127.0.0.1:{int(said.rstrip('.' + chr(10)).rsplit(' ', 1)[1])}", profile)
            try:
                yield session
            finally:
                session.close()
        finally:
            driver.terminate()
            driver.wait()
            driver.stdout.close()


def problems(seen: dict[str, Any], *, dark: bool) -> list[str]:
    """What is wrong with what was seen."""
    found = [f"it fetches {name}" for name in seen["fetched"]]
    if seen["scroll"] > seen["width"]:
        found.append(f"it is {seen['scroll']} pixels wide in a window of {seen['width']}")
    if not seen["figures"]:
        found.append("it has no plots")
    for figure in seen["figures"]:
        if len(figure["plots"]) != 1:
            found.append(f"{figure['name']}: {len(figure['plots'])} plots show, not one")
        for plot in figure["plots"]:
            if plot["left"] < 0 or plot["right"] > seen["width"] or plot["width"] < 250 or plot["height"] < 80:
                box = f"{plot['left']:.0f} to {plot['right']:.0f}, {plot['height']:.0f} high"
                found.append(f"{figure['name']}: not in the window: {box}")
            if plot["drawn"] < 8:
                found.append(f"{figure['name']}: hardly anything is drawn")
            if plot["outside"]:
                found.append(f"{figure['name']}: {plot['outside']} marks or words stick out of the plot")
            if plot["letters"] < 9:
                found.append(f"{figure['name']}: letters of {plot['letters']:.1f} pixels")
    numbers = [int(n) for n in seen["paper"].strip("rgba()").split(",")[:3]]
    if dark != (sum(numbers) < 3 * 128):
        found.append(f"the paper is {seen['paper']}")
    return found


def look(page: Path, shots: Path) -> list[str]:
    """Everything that is wrong with the page; the screenshots go to a folder."""
    shots.mkdir(parents=True, exist_ok=True)
    wrong = []
    with browser() as session:
        for name, ((width, height), medium, scheme) in SIGHTS.items():
            session.tools(
                "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                mobile=width < 500,
            )  # fmt: skip
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            session.tools("Emulation.setEmulatedMedia", media=medium, features=features)
            session.call("/url", url=page.resolve().as_uri())
            seen = session.call("/execute/sync", script=_LOOK, args=[])
            said = [entry["message"] for entry in session.call("/se/log", type="browser")]
            dark = medium == "screen" and scheme == "dark"  # paper is white
            wrong += [f"{name}: {text}" for text in (*said, *problems(seen, dark=dark))]
            clip = {"x": 0, "y": 0, "width": width, "height": min(seen["height"], _TALLEST), "scale": 1}
            shot = session.tools("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
            (shots / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))
        sheet = session.tools("Page.printToPDF", preferCSSPageSize=True)
        (shots / "print.pdf").write_bytes(base64.b64decode(sheet["data"]))
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.browser", description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--shots", type=Path, help="where screenshots go (default: beside the page)")
    arguments = parser.parse_args()
    if why := why_absent():
        print(f"skipped: the page was not looked at, for there is {why}")
        return 0
    shots = arguments.shots or arguments.page.parent / "screenshots"
    wrong = look(arguments.page, shots)
    print(*wrong, sep="\n")
    print(f"{arguments.page}: {f'{len(wrong)} faults' if wrong else 'well'}; screenshots in {shots}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
