"""Signatures of the hub's variants: `metadata.json.sigstore`, by the workflows that the trust file names, offline.

Only packages that a rule of the trust file covers are checked. A rule names a workflow of a repository on a branch, and
files that are trusted by their digest alone. The time of a signature is that of the log that has it, so this machine's
clock does not matter. Whatever metadata.json states is compared by others: a signature covers that file.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any

from opforge.errors import ExtraNotInstalledError
from opforge.foundation.files import read_file
from opforge.packages.form import digests, metadata
from opforge.remote.signatures import trust_file
from opforge.remote.signatures.trust_file import Workflow

ISSUER = "https://token.actions.githubusercontent.com"
HOST = "https://github.com"
MAX_BUNDLE_BYTES = 1 << 20


def has_rule(name: str) -> bool:
    """Returns whether a rule of the trust file says whose signatures of a package count. Raises TrustFileError."""
    return bool(trust_file.read().workflows_of(f"package:{name}"))


def problem(name: str, folder: str) -> str:
    """Returns why the variant in a folder is not accepted as one of the package, or an empty text.

    Raises TrustFileError; ExtraNotInstalledError if there is a signature to verify, and `sigstore` is not installed.
    """
    stated = trust_file.read()
    rules = stated.workflows_of(f"package:{name}")
    if not rules:
        return ""
    text = read_file(os.path.join(folder, metadata.FILE), metadata.MAX_BYTES)
    if metadata.parse(text, os.path.join(folder, metadata.FILE)).files is None:
        return "it states no digests, so a signature would cover no file"
    digest = digests.tree_digest(digests.of_folder(folder), text)
    if any(digest in rule.files for rule in rules):
        return ""
    reason = _refusal(name, folder, text, rules)
    advice = f"To trust these very files, add {digest} to 'files' of a rule of 'sigstore' in {stated.path}"
    return f"{reason}. {advice}" if reason else ""


def _refusal(name: str, folder: str, text: bytes, rules: Sequence[Workflow]) -> str:
    """Returns why no signature of the metadata's text is accepted, or an empty text."""
    try:
        bundle = read_file(os.path.join(folder, metadata.SIGSTORE), MAX_BUNDLE_BYTES)
    except FileNotFoundError:
        return f"it is not signed: it has no {metadata.SIGSTORE}"
    except (OSError, ValueError) as error:
        return f"its signature cannot be read ({error})"
    reasons = [_problem(text, bundle, rule) for rule in rules if rule.repository]
    return "" if "" in reasons else "; ".join(dict.fromkeys(reasons)) or f"no workflow may sign {name}"


def _problem(text: bytes, bundle: bytes, rule: Workflow) -> str:
    """Returns why a signature of these bytes is not one by a rule's workflow, or an empty text."""
    try:
        models, verify = importlib.import_module("sigstore.models"), importlib.import_module("sigstore.verify")
        errors = importlib.import_module("sigstore.errors")
    except ImportError:
        raise ExtraNotInstalledError("verifying the hub's signatures", "sigstore", "sigstore") from None
    try:
        verifier = verify.Verifier(trusted_root=_trusted_root(models, rule.root))
        parsed = models.Bundle.from_json(bundle)
    except (errors.Error, OSError, ValueError) as error:
        return f"its signature cannot be read ({error})"
    try:
        verifier.verify_artifact(text, parsed, _policy(verify.policy, rule))
    except errors.Error as error:
        return f"its signature is not accepted for {rule} ({error})"
    return ""


def _policy(policy: Any, rule: Workflow) -> Any:
    signer = f"{HOST}/{rule.repository}/{rule.workflow}@refs/heads/{rule.branch}"
    parts: Sequence[Any] = [
        policy.OIDCIssuerV2(ISSUER),
        policy.OIDCSourceRepositoryURI(f"{HOST}/{rule.repository}"),
        policy.OIDCBuildSignerURI(signer),
    ]
    return policy.AllOf(parts)


def _trusted_root(models: Any, path: str) -> Any:
    """Returns the keys of an instance of sigstore: in a file, or those of the public one that `sigstore` brings."""
    if path:
        return models.TrustedRoot.from_file(path)
    return models.ClientTrustConfig.production(offline=True).trusted_root
