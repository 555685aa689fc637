"""The validated contract, with its spaces and fingerprints."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from gymnasium import spaces

from embodied_env.contract.contract_schema import ContractFields
from embodied_env.contract.contract_validation import validate_contract
from embodied_env.contract.fingerprint import meaning, sha256_of, to_plain
from embodied_env.contract.spaces import action_space, observation_space


@dataclass(frozen=True, kw_only=True, repr=False)
class Contract(ContractFields):
    """A validated robot and task with its spaces, limits, timing, safety and backend profiles."""

    def __post_init__(self) -> None:
        """Freeze the fields and validate every rule, or raise ContractError."""
        super().__post_init__()
        validate_contract(self)

    def __repr__(self) -> str:
        return f"<Contract {self.name} v{self.version} ({self.fingerprint[:12]})>"

    @cached_property
    def observation_space(self) -> spaces.Dict:
        """The agent's observation, a flat Dict of Boxes derived from the contract alone."""
        return observation_space(self)

    @cached_property
    def action_space(self) -> spaces.Box | spaces.Dict:
        """The action, which is one Box, or a Dict of Boxes by actuator when there are several."""
        return action_space(self)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of everything that affects the meaning of a result in any backend."""
        return sha256_of(meaning(self))

    @property
    def environment_id(self) -> str:
        """The default ID in Gymnasium, as ``embodied_env/MyArm-v0`` for ``my_arm``."""
        return f"embodied_env/{''.join(part.capitalize() for part in self.name.split('_'))}-v0"

    def backend_fingerprint(self, backend: str) -> str:
        """Return the SHA-256 (hex) of the profile of `backend`, with its files by content."""
        profile = to_plain(self.backends.get(backend, {}))
        if "model_sha256" in profile:
            profile.pop("model", None)
        if isinstance(identified := profile.get("identified"), dict) and "sha256" in identified:
            profile["identified"] = {key: value for key, value in identified.items() if key != "file"}
        return sha256_of({"backend": backend, "profile": profile})
