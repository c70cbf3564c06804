//! Names of images, as containerd keeps them.

use oci_client::Reference;

use super::{Digest, Error, Result};

/// A name in full: `docker.io/library/x:latest` where `x` was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(Reference);

/// How an image is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// By the digest of its configuration, whole.
    Id(Digest),
    /// By a name, or by the first digits of an id that look like one.
    Name(Name),
}

impl Name {
    /// Understands a name, with a registry, tag or digest or without.
    pub fn parse(name: &str) -> Result<Self> {
        let full = vk_pod_engine::image::normalize(name)
            .map_err(|why| Error::invalid(format!("failed to parse image reference {name:?}: {why}")))?;
        let reference = Reference::try_from(full.as_str())
            .map_err(|why| Error::invalid(format!("failed to parse image reference {name:?}: {why}")))?;
        if let Some(digest) = reference.digest() {
            digest.parse::<Digest>().map_err(|why| why.within(&format!("image {name:?}")))?;
        }
        Ok(Self(reference))
    }

    /// Registry and repository.
    pub fn repository(&self) -> String {
        format!("{}/{}", self.0.registry(), self.0.repository())
    }

    /// Under which name it is kept: with the tag, or with the digest, which says all that a tag beside it could.
    pub fn kept(&self) -> String {
        match (self.0.digest(), self.0.tag()) {
            (Some(digest), _) => format!("{}@{digest}", self.repository()),
            (None, tag) => format!("{}:{}", self.repository(), tag.unwrap_or("latest")),
        }
    }

    /// The digest that it asks for.
    pub fn digest(&self) -> Option<Digest> {
        self.0.digest().and_then(|digest| digest.parse().ok())
    }

    /// The repository with another digest.
    pub(crate) fn with_digest(&self, digest: &Digest) -> String {
        format!("{}@{digest}", self.repository())
    }

    pub(crate) fn reference(&self) -> &Reference {
        &self.0
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&self.0, f)
    }
}

/// The full name of an image: `docker.io/library/x:latest` for `x`.
pub fn normalise(name: &str) -> Result<String> {
    Name::parse(name).map(|name| name.to_string())
}

impl Asked {
    pub(crate) fn parse(asked: &str) -> Result<Self> {
        if let Some(id) = asked.parse().ok().or_else(|| Digest::from_hex(asked)) {
            return Ok(Self::Id(id));
        }
        Name::parse(asked).map(Self::Name)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn full(name: &str) -> String {
        normalise(name).unwrap()
    }

    #[test]
    fn a_short_name_means_the_default_registry_and_the_tag_latest() {
        for (short, expected) in [
            ("demo", "docker.io/library/demo:latest"),
            ("demo:1", "docker.io/library/demo:1"),
            ("team/demo", "docker.io/team/demo:latest"),
            ("index.docker.io/demo", "docker.io/library/demo:latest"),
            ("localhost/demo", "localhost/demo:latest"),
            ("registry.test:5000/a/b:c", "registry.test:5000/a/b:c"),
        ] {
            assert_eq!(full(short), expected);
        }
    }

    #[test]
    fn a_digest_stands_for_the_tag_beside_it() {
        let digest = Digest::of(b"");
        let name = Name::parse(&format!("demo:1@{digest}")).unwrap();
        assert_eq!(name.kept(), format!("docker.io/library/demo@{digest}"));
        assert_eq!(name.digest(), Some(digest));
    }

    #[test]
    fn names_that_are_none_are_refused_with_the_reason() {
        for wrong in ["", "UPPER", "a b", "x:", ":1", "x@sha256:12", "../x", "x/../y", "x@sha512:00"] {
            let error = normalise(wrong).unwrap_err();
            assert_eq!(error.kind(), super::super::Kind::Invalid, "{wrong}");
        }
    }

    proptest! {
        /// However much of a name is left out, it is the same image; and a full name stays as it is.
        #[test]
        fn all_writings_of_a_name_are_one(name in "[a-z0-9]{1,8}(-[a-z0-9]{1,4})?", tag in "[A-Za-z0-9_][A-Za-z0-9_.-]{0,9}") {
            let whole = full(&format!("docker.io/library/{name}:{tag}"));
            prop_assert_eq!(&full(&format!("{name}:{tag}")), &whole);
            prop_assert_eq!(&full(&format!("docker.io/{name}:{tag}")), &whole);
            prop_assert_eq!(&full(&whole), &whole);
            prop_assert_eq!(full(&name), full(&format!("{name}:latest")));
        }

        #[test]
        fn no_name_whatsoever_makes_trouble(name in ".{0,80}") {
            if let Ok(name) = Name::parse(&name) {
                prop_assert_eq!(full(&name.to_string()), name.to_string());
            }
        }
    }
}
