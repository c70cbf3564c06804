//! Who may use a local image without pulling it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use aws_lc_rs::digest::{SHA256, digest};
use secrecy::ExposeSecret as _;
use serde::{Deserialize, Serialize};
use vk_provider::resolve::{PullCredentials, RegistryLogin};

/// Who may use a local image under one of its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everyone: it was present before, or it was pulled anonymously.
    Everyone,
    /// Pods with credentials of one of these hashes.
    Credentials(BTreeSet<String>),
    /// Unknown: a pull must show it.
    Unknown,
}

/// Who may use a local image, as it is stored. The default is nobody.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageAccess {
    /// Everyone, under any name: the operator of the node added it.
    #[serde(default)]
    everyone: bool,
    /// By name without tag and digest: two repositories can have the same image with different permissions.
    #[serde(default)]
    repositories: BTreeMap<String, AllowedCredentials>,
}

/// Who may use an image of one repository.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct AllowedCredentials {
    everyone: bool,
    hashes: BTreeSet<String>,
}

// === impl ImageAccess ===

impl ImageAccess {
    /// Opens it to everyone, under any name.
    pub fn allow_everyone(&mut self) {
        self.everyone = true;
    }

    /// Records a pull from a repository, with credentials of this hash or anonymously.
    pub fn allow(&mut self, repository: &str, hash: Option<String>) {
        let allowed = self.repositories.entry(repository.to_owned()).or_default();
        match hash {
            _ if allowed.everyone => {}
            Some(hash) => drop(allowed.hashes.insert(hash)),
            None => *allowed = AllowedCredentials { everyone: true, hashes: BTreeSet::new() },
        }
    }

    /// Who may use it under a name of this repository.
    pub fn of(&self, repository: &str) -> Access {
        match self.repositories.get(repository) {
            _ if self.everyone => Access::Everyone,
            Some(allowed) if allowed.everyone => Access::Everyone,
            Some(allowed) if !allowed.hashes.is_empty() => Access::Credentials(allowed.hashes.clone()),
            _ => Access::Unknown,
        }
    }
}

/// The hash by which credentials are recorded.
pub fn credentials_hash(credentials: &PullCredentials) -> String {
    let parts = match &credentials.login {
        RegistryLogin::Basic { username, password } => ["basic", username.as_str(), password.expose_secret()],
        RegistryLogin::IdentityToken(token) => ["identity", "", token.expose_secret()],
        RegistryLogin::RegistryToken(token) => ["registry", "", token.expose_secret()],
    };
    // With their lengths, so that the encoding is unambiguous.
    let text = parts.map(|part| format!("{}:{part}", part.len())).join(",");
    hex(text.as_bytes())
}

/// The SHA-256 of some bytes, in hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_that_differ_have_other_hashes() {
        let with = |login: RegistryLogin| PullCredentials { registry: "example.com".to_owned(), login };
        let basic =
            |username: &str, password: &str| PullCredentials::basic("example.com", username, password);
        let all = [
            basic("me", "a"),
            basic("me", "b"),
            basic("m", "ea"),
            with(RegistryLogin::IdentityToken("a".to_owned().into())),
            with(RegistryLogin::RegistryToken("a".to_owned().into())),
        ];
        let hashes: BTreeSet<String> = all.iter().map(credentials_hash).collect();
        assert_eq!(hashes.len(), all.len());
        assert_eq!(credentials_hash(&basic("me", "a")), credentials_hash(&basic("me", "a")));
    }

    #[test]
    fn an_image_is_nobodys_by_default_and_each_repository_has_its_own_credentials() {
        let mut access = ImageAccess::default();
        assert_eq!(access.of("r.example/a"), Access::Unknown);
        access.allow("r.example/a", Some("h".to_owned()));
        assert_eq!(access.of("r.example/a"), Access::Credentials(["h".to_owned()].into()));
        assert_eq!(access.of("r.example/b"), Access::Unknown);
        access.allow_everyone();
        assert_eq!(access.of("r.example/b"), Access::Everyone);
    }
}
