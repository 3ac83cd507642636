"""A Slurm cluster on one machine, for tests: own folder, ports, munge and process ids; nothing of the system's.

munged, slurmctld and one slurmd per simulated node run as root, without systemd. Nodes share the machine's
processors and host name; each has fake GPUs (character devices copied from null). There is no accounting
database. Debian's packages: slurm-wlm and munge (22.05).
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from pathlib import Path

from interp.sweep.claims import started_at

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol")
_DEVICE = stat.S_IFCHR | 0o666
_PATIENCE = 60.0
_DAEMONS = "/usr/local/sbin:/usr/sbin:/sbin"

_CONF = """
ClusterName=probe
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.sock,cred_expire=5
SlurmctldPort={ctld}
SlurmdPort={slurmd}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
ReturnToService=2
JobRequeue=1
EnforcePartLimits=ALL
MaxArraySize=10001
MinJobAge=3600
FirstJobId={first}
KillWait=5
SlurmdTimeout={timeout}
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
GresTypes=gpu
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=15
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


def missing() -> str | None:
    """Why no cluster can be started here, or None."""
    absent = [p for p in PROGRAMS if _program(p) is None]
    if absent:
        return f"Slurm is not installed ({', '.join(absent)}): apt-get install slurm-wlm munge"
    if os.geteuid() != 0:
        return "a cluster of its own is started as root only"
    with tempfile.TemporaryDirectory() as folder:
        try:
            os.mknod(Path(folder) / "gpu", _DEVICE, os.makedev(1, 3))
        except OSError as e:
            return f"fake GPUs need character devices, which cannot be made here: {e.strerror}"
    try:
        import submitit  # noqa: F401
    except ImportError:
        return "submitit is not installed: pip install 'interp[slurm]'"
    return None


def _program(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), _DAEMONS]))


class Cluster:
    """Use as a context manager; `SLURM_CONF` in the environment leads every client to it."""

    def __init__(self, nodes: int = 2, gpus: int = 2, timeout: int = 10) -> None:
        self.names = [f"n{i + 1}" for i in range(nodes)]
        self.gpus = gpus
        self.timeout = timeout
        # short: the path of a socket may have 107 characters
        self.root = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
        self._before: str | None = None
        self._pids: dict[str, tuple[int, str | None]] = {}

    # --- start and stop ------------------------------------------------------------------------------------

    def __enter__(self) -> Cluster:
        self._before = os.environ.get("SLURM_CONF")
        os.environ["SLURM_CONF"] = str(self.root / "slurm.conf")
        try:
            self._configure()
            self._munge()
            self._daemon("slurmctld", "slurmctld.pid", "slurmctld")
            for name in self.names:
                self.start_node(name)
            self._idle(len(self.names))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._jobs_end()
        for what in ["slurmctld", *(f"slurmd.{n}" for n in self.names), "munged"]:
            if what in self._pids:
                self._end(*self._pids.pop(what))
        for name in self.names:
            self._kill_of_node(name)
        if self._before is None:
            os.environ.pop("SLURM_CONF", None)
        else:
            os.environ["SLURM_CONF"] = self._before
        shutil.rmtree(self.root, ignore_errors=True)

    def _configure(self) -> None:
        self.root.chmod(0o755)
        for folder in ("state", "spool", "dev", *(f"spool/{n}" for n in self.names)):
            (self.root / folder).mkdir()
        cores = len(os.sched_getaffinity(0))
        ports = free_ports(2 + len(self.names))
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (1 << 20) * 9 // 10 // len(self.names)
        host = socket.gethostname().partition(".")[0]
        shape = f"CPUs={cores} Boards=1 SocketsPerBoard=1 CoresPerSocket={cores} ThreadsPerCore=1 RealMemory={memory}"
        gres = f" Gres=gpu:{self.gpus}" if self.gpus else ""
        nodes = "\n".join(
            f"NodeName={n} NodeHostname={host} NodeAddr=127.0.0.1 Port={p} {shape}{gres} State=UNKNOWN"
            for n, p in zip(self.names, ports[2:], strict=True)
        )
        text = _CONF.format(
            host=host, root=self.root, ctld=ports[0], slurmd=ports[1], nodes=nodes, timeout=self.timeout,
            first=1 + secrets.randbelow(50_000_000),
        )  # fmt: skip
        (self.root / "slurm.conf").write_text(text, encoding="utf-8")
        (self.root / "cgroup.conf").write_text("CgroupAutomount=no\n", encoding="utf-8")
        (self.root / "gres.conf").write_text(self._gres(), encoding="utf-8")

    def _gres(self) -> str:
        """GPUs need real character devices: copies of /dev/null do."""
        for i in range(self.gpus):
            os.mknod(self.root / "dev" / f"gpu{i}", _DEVICE, os.makedev(1, 3))
        files = f"{self.root}/dev/gpu[0-{self.gpus - 1}]" if self.gpus > 1 else f"{self.root}/dev/gpu0"
        return "".join(f"NodeName={n} Name=gpu File={files}\n" for n in self.names) if self.gpus else ""

    def _munge(self) -> None:
        key = self.root / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        words = {
            "key-file": key, "socket": self.root / "munge.sock", "pid-file": self.root / "munged.pid",
            "log-file": self.root / "munged.log", "seed-file": self.root / "munged.seed",
        }  # fmt: skip
        self._daemon("munged", "munged.pid", "munged", "--force", *(f"--{k}={v}" for k, v in words.items()))

    def _daemon(self, what: str, pid_file: str, program: str, *words: str, **env: str) -> None:
        path = _program(program)
        assert path is not None
        done = subprocess.run([path, *words], capture_output=True, text=True, env={**os.environ, **env}, check=False)
        file = self.root / pid_file
        end = time.monotonic() + _PATIENCE
        while done.returncode == 0 and time.monotonic() < end:
            if file.exists() and file.read_text().strip():
                pid = int(file.read_text())
                self._pids[what] = pid, started_at(pid)
                return
            time.sleep(0.05)
        raise RuntimeError(f"{program} did not start: {done.stdout}{done.stderr}{self._log(what)}")

    def _log(self, what: str) -> str:
        try:
            return (self.root / f"{what}.log").read_text(errors="replace")[-2000:]
        except OSError:
            return ""

    def start_node(self, name: str) -> None:
        # the variables name the node to every process that the daemon starts
        (self.root / f"slurmd.{name}.pid").unlink(missing_ok=True)
        self._daemon(f"slurmd.{name}", f"slurmd.{name}.pid", "slurmd", "-N", name, SLURMD_NODENAME=name)

    def _idle(self, count: int) -> None:
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            if len(self.ask("sinfo", "-h", "-p", "debug", "-N", "-t", "idle,alloc,mix", "-o", "%N").split()) == count:
                return
            time.sleep(0.1)
        told = self.ask("sinfo", "-N", "-o", "%N %T %E") + self._log("slurmctld")
        raise RuntimeError(f"nodes do not come up: {told}")

    def _jobs_end(self) -> None:
        if "slurmctld" in self._pids:
            subprocess.run(["scancel", "--me"], capture_output=True, check=False, timeout=30)
            end = time.monotonic() + 20
            while time.monotonic() < end and self.ask("squeue", "-h").strip():
                time.sleep(0.2)

    @staticmethod
    def _end(pid: int, started: str | None) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for _ in range(50):
                if started is None or started_at(pid) != started:
                    return
                if _ == 0:
                    os.kill(pid, number)
                time.sleep(0.1)

    # --- faults and questions ------------------------------------------------------------------------------

    def crash(self, name: str) -> None:
        """A node is lost: its daemon, its job steps and all their processes are killed at once."""
        pid, _ = self._pids.pop(f"slurmd.{name}")
        os.kill(pid, signal.SIGKILL)
        self._kill_of_node(name)

    def _kill_of_node(self, name: str) -> None:
        for pid in self.processes(name):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def processes(self, name: str) -> list[int]:
        """Processes of a node's jobs, by the environment that its daemon gave them."""
        marks = (f"SLURMD_NODENAME={name}".encode(), f"SLURM_CONF={self.root}/slurm.conf".encode())
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                variables = path.read_bytes().split(b"\0")
            except OSError:
                continue
            if all(mark in variables for mark in marks) and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
        return found

    def ask(self, *words: str) -> str:
        """What a client prints."""
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60).stdout

    def jobs(self, state: str = "RUNNING") -> list[str]:
        """Ids of jobs in this state."""
        return self.ask("squeue", "-h", "-r", f"--states={state}", "-o", "%i").split()


def free_ports(count: int) -> list[int]:
    """Ports that are free at the moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
