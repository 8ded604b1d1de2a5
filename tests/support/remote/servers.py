"""Real servers on free ports of this machine, for stores: http.server, nginx, apache2 with mod_dav, moto, Azurite.

Each is a context manager that yields a `Server`, and ends the process by its id. A missing server skips the test.
"""

from __future__ import annotations

import base64
import email.utils
import hmac
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from support.polling import wait_for

HOST = "127.0.0.1"
MOTO = """
import sys, threading
import moto.server
from werkzeug.serving import run_simple

lock, whole = threading.Lock(), moto.server.DomainDispatcherApplication(moto.server.create_backend_app)

def one_at_a_time(environ, start_response):
    with lock:
        return whole(environ, start_response)

run_simple(sys.argv[1], int(sys.argv[2]), one_at_a_time, threaded=True, request_handler=moto.server.MotoRequestHandler)
"""
"""moto compares a precondition and stores afterwards, in threads: two writers of one version may both succeed."""
NOBODY = 65534
START_SECONDS, END_SECONDS = 60, 10
NGINX = """
daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log; worker_processes 1; {user}
events {{ worker_connections 64; }}
http {{
  access_log {folder}/access.log; limit_req_zone $server_port zone=slow:1m rate=4r/s;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{ listen {host}:{port}; root {root}; location / {{ {location} }} }}
}}
"""
APACHE = """
ServerRoot {folder}
ServerName {host}
Listen {host}:{port}
PidFile {folder}/httpd.pid
DefaultRuntimeDir {folder}
ErrorLog {folder}/error.log
LoadModule mpm_event_module {modules}/mod_mpm_event.so
LoadModule authz_core_module {modules}/mod_authz_core.so
LoadModule dav_module {modules}/mod_dav.so
LoadModule dav_fs_module {modules}/mod_dav_fs.so
DavLockDB {folder}/locks
DocumentRoot {root}
KeepAliveTimeout 60
MaxKeepAliveRequests 0
<Directory {root}>
  Dav On
  Require all granted
</Directory>
{user}
"""


class Server(NamedTuple):
    """A server that runs: its URL, the folder whose files it has (empty for S3), and its process."""

    url: str
    root: str
    pid: int


def free_port() -> int:
    """Returns a port of this machine that nothing uses now."""
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        return int(sock.getsockname()[1])


@contextmanager
def _folder() -> Iterator[Path]:
    """Makes a folder that a server with another user id can enter; pytest's own are private."""
    path = Path(tempfile.mkdtemp(prefix="opforge-server-"))
    try:
        (path / "root").mkdir()
        if os.geteuid() == 0:
            for part in (path, path / "root"):
                os.chown(part, NOBODY, NOBODY)
        path.chmod(0o755)
        yield path
    finally:
        shutil.rmtree(path)


@contextmanager
def _process(command: Sequence[str], port: int, folder: Path) -> Iterator[int]:
    """Runs a server until the block ends. The block begins when it accepts connections."""
    with (folder / "output").open("w+b") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True, cwd=folder)

        def accepts() -> bool:
            with socket.socket() as sock:
                return process.poll() is not None or sock.connect_ex((HOST, port)) == 0

        try:
            wait_for(accepts, START_SECONDS, f"{command[0]} does not accept connections")
            assert process.poll() is None, (folder / "output").read_text()
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _needs(program: str, command: str) -> str:
    path = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if not path:
        pytest.skip(f"{program} is not installed: {command}")
    return path


@contextmanager
def without_proxies() -> Iterator[None]:
    """Removes the variables that name proxies: servers of this machine are not behind one."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
            patch.delenv(name)
        yield


@contextmanager
def http_server() -> Iterator[Server]:
    """Runs `python -m http.server`: no Range, no ETag, no PUT, a connection for each request."""
    with _folder() as folder:
        port, root = free_port(), str(folder / "root")
        command = [sys.executable, "-m", "http.server", str(port), "--bind", HOST, "--directory", root]
        with _process(command, port, folder) as pid:
            yield Server(f"http://{HOST}:{port}", root, pid)


@contextmanager
def nginx(location: str = "dav_methods PUT DELETE MKCOL MOVE; create_full_put_path on;") -> Iterator[Server]:
    """Runs nginx, whose dav module takes PUT and ignores preconditions. `slow` is a zone of 4 requests a second."""
    program = _needs("nginx", "apt install nginx-light")
    with _folder() as folder:
        port, root = free_port(), str(folder / "root")
        user = "user nobody nogroup;" if os.geteuid() == 0 else ""
        text = NGINX.format(folder=folder, host=HOST, port=port, root=root, location=location, user=user)
        (folder / "nginx.conf").write_text(text)
        with _process([program, "-c", str(folder / "nginx.conf"), "-p", str(folder)], port, folder) as pid:
            yield Server(f"http://{HOST}:{port}", root, pid)


@contextmanager
def apache() -> Iterator[Server]:
    """Runs apache2 with mod_dav, which honours preconditions."""
    program = _needs("apache2", "apt install apache2-bin")
    with _folder() as folder:
        port, root = free_port(), str(folder / "root")
        user = f"User #{NOBODY}\nGroup #{NOBODY}" if os.geteuid() == 0 else ""
        modules = "/usr/lib/apache2/modules"
        text = APACHE.format(folder=folder, host=HOST, port=port, root=root, modules=modules, user=user)
        (folder / "httpd.conf").write_text(text)
        with _process([program, "-f", str(folder / "httpd.conf"), "-D", "FOREGROUND"], port, folder) as pid:
            yield Server(f"http://{HOST}:{port}", root, pid)


@contextmanager
def moto() -> Iterator[Server]:
    """Runs moto's S3 with the bucket "ops"; the URL is that of a store, and credentials are in the environment."""
    pytest.importorskip("moto")
    pytest.importorskip("obstore")
    with _folder() as folder, pytest.MonkeyPatch.context() as patch:
        port = free_port()
        with _process([sys.executable, "-c", MOTO, HOST, str(port)], port, folder) as pid:
            request = urllib.request.Request(f"http://{HOST}:{port}/ops", method="PUT")
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30).close()
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                patch.setenv(name, "testing")
            yield Server(f"s3://ops/team?region=us-east-1&endpoint=http://{HOST}:{port}", "", pid)


@contextmanager
def azurite() -> Iterator[Server]:
    """Runs Azurite, Azure's own emulator, with the container "ops"; the URL and the variables are as for moto."""
    pytest.importorskip("obstore")
    program = _needs("azurite-blob", "npm install --global azurite")
    account, secret = "devstoreaccount1", base64.b64encode(b"a key of this test").decode()
    with _folder() as folder, pytest.MonkeyPatch.context() as patch:
        port = free_port()
        patch.setenv("AZURITE_ACCOUNTS", f"{account}:{secret}")
        words = ("--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry")
        with _process([program, "--blobHost", HOST, "--blobPort", str(port), *words], port, folder) as pid:
            endpoint = f"http://{HOST}:{port}/{account}"
            patch.setenv("AZURE_STORAGE_ACCOUNT_NAME", account)
            patch.setenv("AZURE_STORAGE_ACCOUNT_KEY", secret)
            _make_container(f"{endpoint}/ops", account, secret)
            yield Server(f"az://ops/team?endpoint={endpoint}", "", pid)


def _make_container(url: str, account: str, secret: str) -> None:
    """Makes a container by a request that is signed with the account's key."""
    date = email.utils.formatdate(usegmt=True)
    headers = {"x-ms-date": date, "x-ms-version": "2021-08-06"}
    resource = f"/{account}{urllib.parse.urlsplit(url).path}\nrestype:container"
    signed = "\n".join(["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in headers.items()), resource])
    digest = hmac.digest(base64.b64decode(secret), signed.encode(), "sha256")
    headers |= {"Authorization": f"SharedKey {account}:{base64.b64encode(digest).decode()}", "Content-Length": "0"}
    request = urllib.request.Request(f"{url}?restype=container", method="PUT", headers=headers)
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30).close()
