//! The API server's version.

use crate::{Client, Error, objects::with_timeout};

/// A version of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerVersion {
    /// The major version; always 1 so far.
    pub major: u32,
    /// The minor version.
    pub minor: u32,
}

impl ServerVersion {
    /// Asks the API server. Every authenticated user may.
    pub async fn fetch(client: &Client) -> Result<Self, Error> {
        let kube = client.kube();
        let answer = with_timeout(kube.apiserver_version()).await;
        client.metrics().count("get", "version", &answer);
        let answer = answer?;
        Ok(Self { major: leading(&answer.major), minor: leading(&answer.minor) })
    }
}

/// Parses the leading digits: some distributions report `31+`.
fn leading(text: &str) -> u32 {
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    digits.parse().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minor_with_a_suffix_is_a_number_and_versions_are_ordered() {
        assert_eq!((leading("36"), leading("31+"), leading("")), (36, 31, 0));
        let version = |minor| ServerVersion { major: 1, minor };
        assert!(version(36) >= version(36) && version(35) < version(36));
    }
}
