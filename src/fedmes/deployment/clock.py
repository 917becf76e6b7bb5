"""Is a site's clock right? Flower refuses a site whose clock is wrong, and does not say why."""

from __future__ import annotations

import http.client
import ssl
import time
from email.utils import parsedate_to_datetime
from pathlib import Path

from fedmes.errors import UserError

AHEAD = 5.0  # seconds by which Flower lets a site's clock be ahead of the SuperLink's
BEHIND = 305.0
PATIENCE = 10.0  # seconds for an answer


def ahead(superlink: str, authority: Path) -> float | None:
    """Seconds by which this machine's clock is ahead of the SuperLink's; None: it does not answer.

    The front says its time, in whole seconds, to everybody.
    """
    host, _, port = superlink.rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(f"superlink: HOST:PORT is needed, not {superlink!r}")
    try:
        trusted = ssl.create_default_context(cafile=str(authority))
    except OSError as error:  # also what ssl raises
        raise UserError(f"{authority}: not a certificate ({error})") from None
    connection = http.client.HTTPSConnection(
        host.strip("[]"), int(port), context=trusted, timeout=PATIENCE
    )
    try:
        before = time.time()
        connection.request("GET", "/")
        date = connection.getresponse().getheader("date")
        now = (before + time.time()) / 2
    except ssl.SSLCertVerificationError as error:
        raise UserError(
            f"{superlink}: its certificate is not accepted ({error.verify_message}); "
            "is ca.crt the operator's, and this machine's clock right?"
        ) from None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    if date is None:
        return None
    return now - parsedate_to_datetime(date).timestamp() - 0.5


def check(superlink: str, authority: Path) -> bool:
    """Refuse a clock that Flower would refuse. Could it be asked?"""
    found = ahead(superlink, authority)
    if found is None:
        return False
    if -BEHIND < found < AHEAD:
        return True
    direction = "ahead of" if found > 0 else "behind"
    raise UserError(
        f"clock: this machine's is {abs(found):.0f} s {direction} that of {superlink}, which "
        f"takes sites from {AHEAD:.0f} s ahead to {BEHIND:.0f} s behind; set it right, as by NTP"
    )
