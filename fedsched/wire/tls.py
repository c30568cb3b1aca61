"""How a client checks whom it talks to, and shows who it is. The TLS library is imported only when it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fedsched.model.errors import BadRequest

if TYPE_CHECKING:
    import ssl


class TlsOptions(NamedTuple):
    """What to trust and what to show; empty means the system's own authorities, and no certificate of ours."""

    ca_cert: str = ""
    ca_path: str = ""
    client_cert: str = ""
    client_key: str = ""
    server_name: str = ""
    """The name the certificate must carry, when it is not the host that was dialled."""
    skip_verify: bool = False

    def context(self) -> ssl.SSLContext:
        """Ready for a client; `BadRequest` names the file that cannot be used."""
        import ssl

        try:
            context = ssl.create_default_context(cafile=self.ca_cert or None, capath=self.ca_path or None)
        except OSError as error:
            raise BadRequest(f"cannot load authorities from {self.ca_cert or self.ca_path!r}: {error}") from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.client_cert:
            try:
                context.load_cert_chain(self.client_cert, self.client_key or None)
            except OSError as error:
                raise BadRequest(f"cannot load certificate {self.client_cert!r}: {error}") from error
        if self.skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context
