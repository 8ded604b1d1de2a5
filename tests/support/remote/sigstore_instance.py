"""An instance of sigstore with its own keys, which signs without a network: a CA, a log of certificates, a log."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from datetime import UTC, datetime, timedelta
from typing import Any

import rfc8785
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

DER, PEM = serialization.Encoding.DER, serialization.Encoding.PEM
SPKI = serialization.PublicFormat.SubjectPublicKeyInfo
SHA256 = ec.ECDSA(hashes.SHA256())
ISSUER_V2, SIGNER, SOURCE = "1.3.6.1.4.1.57264.1.8", "1.3.6.1.4.1.57264.1.9", "1.3.6.1.4.1.57264.1.12"
TIMESTAMPS = "1.3.6.1.4.1.11129.2.4.2"
START = datetime(2026, 1, 1, tzinfo=UTC)
REPOSITORY, WORKFLOW = "acme/kernels", ".github/workflows/build.yaml"


class Instance:
    """The keys, and what they sign."""

    def __init__(self) -> None:
        self.ca_key, self.ct_key, self.log_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
        self.ca = self._authority()

    def root(self) -> str:
        """Returns the trusted root, as JSON."""
        span = {"start": "2025-01-01T00:00:00Z"}
        authority = {
            "subject": {"organization": "test", "commonName": "test"},
            "uri": "https://ca.invalid",
            "certChain": {"certificates": [{"rawBytes": _text(self.ca.public_bytes(DER))}]},
            "validFor": span,
        }
        value = {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [_instance(self.log_key, span)],
            "certificateAuthorities": [authority],
            "ctlogs": [_instance(self.ct_key, span)],
            "timestampAuthorities": [],
        }
        return json.dumps(value)

    def bundle(
        self, data: bytes, repository: str = REPOSITORY, workflow: str = WORKFLOW, branch: str = "main", late: int = 0
    ) -> str:
        """Returns the bundle of a workflow's signature of these bytes, `late` minutes after its certificate began."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._certificate(key, repository, f"{workflow}@refs/heads/{branch}")
        signature, digest = key.sign(data, SHA256), hashlib.sha256(data).digest()
        body = rfc8785.dumps(
            {
                "apiVersion": "0.0.1",
                "kind": "hashedrekord",
                "spec": {
                    "data": {"hash": {"algorithm": "sha256", "value": digest.hex()}},
                    "signature": {
                        "content": _text(signature),
                        "publicKey": {"content": _text(certificate.public_bytes(PEM))},
                    },
                },
            }
        )
        value = {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {
                "certificate": {"rawBytes": _text(certificate.public_bytes(DER))},
                "tlogEntries": [self._entry(body, int((START + timedelta(minutes=1 + late)).timestamp()))],
            },
            "messageSignature": {
                "messageDigest": {"algorithm": "SHA2_256", "digest": _text(digest)},
                "signature": _text(signature),
            },
        }
        return json.dumps(value)

    def _entry(self, body: bytes, at: int) -> dict[str, Any]:
        """Returns the entry of a log that has this one alone."""
        log, root = _key_id(self.log_key), hashlib.sha256(b"\0" + body).digest()
        note = f"log.invalid\n1\n{_text(root)}\n"
        signed = _text(log[:4] + self.log_key.sign(note.encode(), SHA256))
        promised = {"body": _text(body), "integratedTime": at, "logID": log.hex(), "logIndex": 0}
        return {
            "logIndex": "0",
            "logId": {"keyId": _text(log)},
            "kindVersion": {"kind": "hashedrekord", "version": "0.0.1"},
            "integratedTime": str(at),
            "inclusionPromise": {"signedEntryTimestamp": _text(self.log_key.sign(rfc8785.dumps(promised), SHA256))},
            "inclusionProof": {
                "logIndex": "0",
                "rootHash": _text(root),
                "treeSize": "1",
                "hashes": [],
                "checkpoint": {"envelope": f"{note}\n\u2014 log.invalid {signed}\n"},
            },
            "canonicalizedBody": _text(body),
        }

    def _authority(self) -> x509.Certificate:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        return (
            _begun(name, name, self.ca_key.public_key(), timedelta(days=3650))
            .add_extension(x509.BasicConstraints(True, 0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.ca_key.public_key()), critical=False)
            .sign(self.ca_key, hashes.SHA256())
        )

    def _certificate(self, key: ec.EllipticCurvePrivateKey, repository: str, signer: str) -> x509.Certificate:
        """Returns a certificate for ten minutes, with the timestamp of the log of certificates in it."""
        usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
        builder = (
            _begun(x509.Name([]), self.ca.subject, key.public_key(), timedelta(minutes=10))
            .add_extension(usage, critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.ca_key.public_key()), critical=False)
            .add_extension(
                x509.SubjectAlternativeName(
                    [x509.UniformResourceIdentifier(f"https://github.com/{repository}/{signer}")]
                ),
                critical=True,
            )
        )
        for oid, text in (
            (ISSUER_V2, "https://token.actions.githubusercontent.com"),
            (SIGNER, f"https://github.com/{repository}/{signer}"),
            (SOURCE, f"https://github.com/{repository}"),
        ):
            value = b"\x0c" + _length(len(text)) + text.encode()
            builder = builder.add_extension(x509.UnrecognizedExtension(ObjectIdentifier(oid), value), critical=False)
        # What is signed is the certificate without this extension: one with any other has the same.
        first = self._stamped(builder, b"")
        return self._stamped(builder, first.tbs_precertificate_bytes)

    def _stamped(self, builder: x509.CertificateBuilder, certificate: bytes) -> x509.Certificate:
        at = int(START.timestamp() * 1000)
        entry = hashlib.sha256(self.ca_key.public_key().public_bytes(DER, SPKI)).digest()
        entry += len(certificate).to_bytes(3, "big") + certificate
        signature = self.ct_key.sign(struct.pack("!BBQH", 0, 0, at, 1) + entry + b"\0\0", SHA256)
        stamp = struct.pack("!B32sQH", 0, _key_id(self.ct_key), at, 0)
        stamp += struct.pack("!BBH", 4, 3, len(signature)) + signature
        stamps = struct.pack("!H", len(stamp) + 2) + struct.pack("!H", len(stamp)) + stamp
        value = b"\x04" + _length(len(stamps)) + stamps
        extension = x509.UnrecognizedExtension(ObjectIdentifier(TIMESTAMPS), value)
        return builder.add_extension(extension, critical=False).sign(self.ca_key, hashes.SHA256())


def _begun(subject: x509.Name, issuer: x509.Name, key: Any, span: timedelta) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(START)
        .not_valid_after(START + span)
    )


def _instance(key: ec.EllipticCurvePrivateKey, span: dict[str, str]) -> dict[str, Any]:
    data = _text(key.public_key().public_bytes(DER, SPKI))
    public = {"rawBytes": data, "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": span}
    log = {"keyId": _text(_key_id(key))}
    return {"baseUrl": "https://log.invalid", "hashAlgorithm": "SHA2_256", "publicKey": public, "logId": log}


def _key_id(key: ec.EllipticCurvePrivateKey) -> bytes:
    return hashlib.sha256(key.public_key().public_bytes(DER, SPKI)).digest()


def _length(count: int) -> bytes:
    """Returns a length as DER has it."""
    return (
        bytes([count]) if count < 128 else bytes([0x81, count]) if count < 256 else b"\x82" + count.to_bytes(2, "big")
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
