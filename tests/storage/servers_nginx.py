"""nginx on loopback, over HTTP and over HTTPS with a private certificate authority."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import pytest
from ports import free_ports
from server_process import accepts_connections, running

CONFIGURATION = """
daemon off; pid {root}/pid; error_log {root}/error.log; worker_processes 1;
events {{}}
http {{
  access_log {root}/access.log; default_type application/octet-stream; sendfile on;
  keepalive_requests 100000;
  client_body_temp_path {root}/t1; proxy_temp_path {root}/t2; fastcgi_temp_path {root}/t3;
  uwsgi_temp_path {root}/t4; scgi_temp_path {root}/t5;
  server {{
    listen 127.0.0.1:{plain}; listen 127.0.0.1:{secure} ssl;
    ssl_certificate {root}/server.pem; ssl_certificate_key {root}/server.key;
    root {root}/www; client_max_body_size 1g;
    location /slow/ {{ limit_rate 300k; }}
    location /locked/ {{ auth_basic "x"; auth_basic_user_file {root}/users; }}
  }}
}}
"""


@dataclasses.dataclass
class Nginx:
    folder: Path
    plain: str
    secure: str
    authority: Path
    log: Path

    def requests(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture(scope="module")
def nginx(tmp_path_factory):
    """The server; its files are in ``folder``, and ``locked/`` needs me:secret."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        pytest.skip("NO NGINX ON THIS MACHINE, HTTPS IS NOT TESTED: apt-get install nginx-light")
    trustme = pytest.importorskip("trustme")
    root = tmp_path_factory.mktemp("nginx")
    for name in ("www/slow", "www/locked"):
        (root / name).mkdir(parents=True)
    root.chmod(0o755)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(root / "authority.pem")
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    certificate.private_key_pem.write_to_path(root / "server.key")
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(root / "server.pem", append=True)
    (root / "users").write_text("me:{PLAIN}secret\n")
    plain, secure = free_ports(2)
    text = CONFIGURATION.format(root=root, plain=plain, secure=secure)
    (root / "nginx.conf").write_text(f"user root;{text}" if os.geteuid() == 0 else text)
    command = [program, "-p", str(root), "-c", str(root / "nginx.conf")]
    with running(command, root, lambda: accepts_connections(plain)):
        urls = f"http://127.0.0.1:{plain}", f"https://127.0.0.1:{secure}"
        yield Nginx(root / "www", *urls, root / "authority.pem", root / "access.log")
