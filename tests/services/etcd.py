"""A real etcd from the venv, on free loopback ports, that can be stopped, killed, frozen and started again."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from services.ports import free_ports

BINARIES = Path(sys.executable).parent
READY_S = 30


class Etcd:
    """One member that is a cluster. `with Etcd() as etcd: etcd.endpoint`."""

    def __init__(self, *, binary=BINARIES / "etcd", tls=False, client_cert=False, user=None, password=None, flags=()):
        self.binary = binary
        self.directory = Path(tempfile.mkdtemp(prefix="etcd-"))
        self.client, self.peer, self.health = free_ports(3)
        self.tls = tls or client_cert
        self.client_cert = client_cert
        self.user, self.password = user, password
        self.flags = flags
        self.process = None
        if self.tls:
            self.make_certificates()

    @property
    def endpoint(self):
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.client}"

    def make_certificates(self):
        import trustme

        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.directory / "ca.pem")
        for name in ("server", "client"):
            issued = authority.issue_cert("127.0.0.1", "localhost")
            issued.private_key_pem.write_to_path(self.directory / f"{name}.key")
            issued.cert_chain_pems[0].write_to_path(self.directory / f"{name}.pem")

    def file(self, name):
        return str(self.directory / name)

    def start(self):
        command = [
            str(self.binary), "--data-dir", self.file("data"), "--name", "one", "--log-level", "error",
            "--listen-client-urls", self.endpoint, "--advertise-client-urls", self.endpoint,
            "--listen-peer-urls", f"http://127.0.0.1:{self.peer}",
            "--initial-advertise-peer-urls", f"http://127.0.0.1:{self.peer}",
            "--initial-cluster", f"one=http://127.0.0.1:{self.peer}",
            "--listen-metrics-urls", f"http://127.0.0.1:{self.health}",
            # Leases last at least one and a half elections: small ones make short leases possible.
            "--heartbeat-interval", "30", "--election-timeout", "300", *self.flags,
        ]  # fmt: skip
        if self.user:
            command += ["--bcrypt-cost", "4"]
        if self.tls:
            command += ["--cert-file", self.file("server.pem"), "--key-file", self.file("server.key")]
        if self.client_cert:
            command += ["--client-cert-auth", "--trusted-ca-file", self.file("ca.pem")]
        log = (self.directory / "log").open("ab")
        with log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.wait_until_healthy()
        return self

    def wait_until_healthy(self):
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            with suppress(URLError, OSError), urlopen(f"http://127.0.0.1:{self.health}/health", timeout=1) as answer:
                if b'"true"' in answer.read():
                    return
            if self.process.poll() is not None:
                break
            time.sleep(0.02)  # between two looks
        raise RuntimeError(f"etcd did not start: {(self.directory / 'log').read_text()[-2000:]}")

    def ctl(self, *arguments, user=None):
        """Run etcdctl; returns what it prints."""
        command = [str(BINARIES / "etcdctl"), "--endpoints", self.endpoint]
        if self.tls:
            command += ["--cacert", self.file("ca.pem")]
        if self.client_cert:
            command += ["--cert", self.file("client.pem"), "--key", self.file("client.key")]
        if user:
            command += ["--user", user]
        return subprocess.run(
            [*command, *arguments], env={**os.environ, "ETCDCTL_API": "3"}, capture_output=True, text=True, check=True
        ).stdout

    def require_user(self):
        """Let nobody in but the user, who may do everything."""
        self.ctl("user", "add", f"{self.user}:{self.password}")
        self.ctl("user", "grant-role", self.user, "root")
        self.ctl("auth", "enable")

    def freeze(self):
        """Stop it; when this returns, none of its threads runs any more."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def stop(self, number=signal.SIGTERM):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.send_signal(signal.SIGCONT)
            self.process.wait(READY_S)

    def kill(self):
        self.stop(signal.SIGKILL)

    def restart(self, number=signal.SIGTERM):
        self.stop(number)
        return self.start()

    def __enter__(self):
        try:
            self.start()
            if self.user:
                self.require_user()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error):
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)
