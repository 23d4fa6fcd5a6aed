"""scripts/docker_engine.sh changes nothing on a machine but its packages, and waits while another apt is at work."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from checkout import ROOT

SCRIPT = ROOT / "scripts" / "docker_engine.sh"
ASIDE = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
TOOLS = {
    # What apt-get was called with, and the sources that it would have taken.
    "apt-get": """for word; do
    case $word in
    Dir::Etc::SourceParts=*) ls "${word#*=}" >>"$OUT/sources" ;;
    install) mv "$OUT/engine" "$OUT/dockerd" ;;
    esac
done
printf '%s\\n' "$*" >>"$OUT/calls"
[ ! -e /usr/sbin/policy-rc.d ] || touch "$OUT/policy"
""",
    "docker": "echo 2.26.1",
}


def all_of(*folders: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for folder in folders for path in folder.rglob("*")}


def test_install_leaves_packages_alone_behind_and_waits_for_other_apts(tmp_path: Path) -> None:
    if subprocess.run([*ASIDE, "mount -t tmpfs none /usr/sbin"], capture_output=True, check=False).returncode:
        pytest.skip("needs a namespace of its own, in which a test may change /usr/sbin")
    release = dict(
        line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if line and line[0] != "#"
    )
    if release["ID"].strip('"') not in ("debian", "ubuntu"):
        pytest.skip("the script is for Debian and Ubuntu")
    out = tmp_path / "out"
    out.mkdir()
    for name, lines in TOOLS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{lines}\n")
        (tmp_path / name).chmod(0o755)
    (out / "engine").write_text("#!/bin/sh\necho Docker version 26.1.5, build x\n")
    (out / "engine").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{out}:/usr/bin:/bin", "OUT": str(out), "TMPDIR": str(tmp_path)}
    before = all_of(Path("/etc/apt"))
    inside = f"mount -t tmpfs none /usr/sbin && '{SCRIPT}' install && ls /usr/sbin"
    done = subprocess.run([*ASIDE, inside], env={**os.environ, **env}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "", "something is left in /usr/sbin"
    assert all_of(Path("/etc/apt")) == before
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["out"], "a temporary folder is left"
    calls = (out / "calls").read_text().splitlines()
    assert len(calls) == 2 and all("DPkg::Lock::Timeout=" in call for call in calls)
    assert (out / "policy").exists(), "the package would have started a dockerd"
    for package in ("docker", "iptables", "tini", "debootstrap"):
        assert package in done.stderr, "it installs what it does not name"
    if release["ID"].strip('"') == "debian" and release["VERSION_ID"].strip('"') == "12":
        assert "labs-docker.sources" in (out / "sources").read_text()
        assert "this command alone" in done.stderr
