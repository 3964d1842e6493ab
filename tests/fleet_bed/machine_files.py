"""What a machine of the bed has of its own on the shared disk: accounts, keys, sshd's settings."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from slipstream.user_folders import slipstream_cache

# The management network, and the cable between the machines of a group.
NETWORKS = {"eth0": "10.77.0", "link0": "10.77.1"}
_START = """\
mount --make-rprivate /
hostname "$1"
mount --bind {own}/passwd /etc/passwd
mount --bind {own}/shadow /etc/shadow
mount --bind {hosts} /etc/hosts
mount -t tmpfs tmpfs /dev/shm
mkdir {own}/cgroup
mount --rbind /sys/fs/cgroup {own}/cgroup
mount -t sysfs sysfs /sys
mount --rbind {own}/cgroup /sys/fs/cgroup
umount -l {own}/cgroup
mount -t tmpfs tmpfs /run
mkdir -m 755 /run/sshd
export LD_LIBRARY_PATH={libraries}
exec {sshd} -D -E {own}/sshd.log -f {own}/sshd_config
"""


def find_sshd() -> Path | None:
    """Find the machine's own sshd, or the one that `fetch_sshd` unpacked."""
    return _find_program("sshd", "openssh")


def fetch_sshd() -> Path:
    """Unpack Debian's sshd, which is not installed: its package would start a daemon."""
    return find_sshd() or _fetch("sshd", "openssh", ("openssh-server", "libwrap0"))


def fetch_nft() -> Path:
    """Unpack Debian's nft, for the firewalls of machines."""
    libraries = ("libnftables1", "libnftnl11", "libmnl0", "libjansson4", "libedit2", "libgmp10")
    return _find_program("nft", "nftables") or _fetch("nft", "nftables", ("nftables", *libraries))


def find_libraries(program: Path) -> str:
    """Return the folders of an unpacked program's libraries, as LD_LIBRARY_PATH."""
    root = program.parents[2]
    folders = [*root.glob("lib/*-linux-gnu"), *root.glob("usr/lib/*-linux-gnu")]
    return ":".join(map(str, folders))


def write_shared_files(folder: Path, numbers: Mapping[str, int]) -> None:
    _make_key(folder / "id_ed25519")
    hosts, known, config = ["127.0.0.1 localhost"], [], []
    for name, number in numbers.items():
        _make_key(folder / f"host-{name}")
        address = f"{NETWORKS['eth0']}.{number}"
        hosts.append(f"{address} {name}")
        known.append(f"{name},{address} {(folder / f'host-{name}.pub').read_text().strip()}")
        config.append(f"Host {name}\n  HostName {address}\n  User root\n")
    (folder / "hosts").write_text("\n".join((*hosts, "")))
    (folder / "known_hosts").write_text("\n".join((*known, "")))
    (folder / "ssh_config").write_text("".join(config))


def write_home(folder: Path, home: Path, variables: Mapping[str, str]) -> Path:
    """Write a machine's accounts and ssh files, and return the script that starts it."""
    ssh, own = home / ".ssh", home / ".bed"
    for made in (home, ssh, own):
        made.mkdir(mode=0o700)
    for file, source in {
        ssh / "config": "ssh_config",
        ssh / "known_hosts": "known_hosts",
        ssh / "id_ed25519": "id_ed25519",
        ssh / "authorized_keys": "id_ed25519.pub",
        own / "host_key": f"host-{home.name}",
    }.items():
        shutil.copy(folder / source, file)
    (own / "passwd").write_text(
        f"root:x:0:0:root:{home}:/bin/bash\n"
        "sshd:x:105:65534::/run/sshd:/usr/sbin/nologin\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    )
    (own / "shadow").write_text("root:*:19000:0:99999:7:::\n")
    settings = " ".join(json.dumps(f"{name}={value}") for name, value in variables.items())
    (own / "sshd_config").write_text(
        "Port 22\nUsePAM no\nPermitRootLogin prohibit-password\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        f"HostKey {own / 'host_key'}\nPidFile none\nMaxStartups 100\nMaxSessions 100\n"
        f"Subsystem sftp internal-sftp\nSetEnv {settings}\n"
    )
    sshd = fetch_sshd()
    libraries = find_libraries(sshd)
    start = own / "start"
    start.write_text(_START.format(own=own, hosts=folder / "hosts", sshd=sshd, libraries=libraries))
    return start


def run(argv: Sequence[str], cwd: Path | None = None) -> None:
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")


def _make_key(file: Path) -> None:
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "bed", "-f", str(file)])


def _find_program(name: str, kept: str) -> Path | None:
    if found := shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin"):
        return Path(found)
    unpacked = slipstream_cache(os.environ) / kept / "usr" / "sbin" / name
    return unpacked if unpacked.is_file() else None


def _fetch(name: str, kept: str, packages: Sequence[str]) -> Path:
    folder = slipstream_cache(os.environ) / kept
    folder.mkdir(parents=True, exist_ok=True)
    run(["apt-get", "download", "-qq", *packages], cwd=folder)
    for package in folder.glob("*.deb"):
        run(["dpkg-deb", "--extract", str(package), str(folder)])
        package.unlink()
    return folder / "usr" / "sbin" / name
