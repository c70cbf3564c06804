//! Image names, in the form in which containerd stores them.

use oci_spec::distribution::Reference;

use super::{Digest, Error, Result};

/// A full image name: `docker.io/library/x:latest` for `x`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageName(Reference);

/// How an image is referred to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ImageQuery {
    /// By its id, the digest of its config.
    Id(Digest),
    /// By a name, or by a short id that looks like one.
    ImageName(ImageName),
}

impl ImageName {
    /// Parses a name; registry, tag and digest are optional.
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

    /// The name under which the image is stored: with the digest if there is one, otherwise with the tag.
    pub fn stored_name(&self) -> String {
        match (self.0.digest(), self.0.tag()) {
            (Some(digest), _) => format!("{}@{digest}", self.repository()),
            (None, tag) => format!("{}:{}", self.repository(), tag.unwrap_or("latest")),
        }
    }

    /// The digest in the name.
    pub fn digest(&self) -> Option<Digest> {
        self.0.digest().and_then(|digest| digest.parse().ok())
    }

    /// The repository with another digest.
    pub(crate) fn with_digest(&self, digest: &Digest) -> String {
        format!("{}@{digest}", self.repository())
    }

    /// How the registry knows the image: its repository there, and its digest or tag.
    pub(crate) fn remote(&self) -> (&str, &str) {
        (self.0.repository(), self.0.digest().or_else(|| self.0.tag()).unwrap_or("latest"))
    }

    pub(crate) fn reference(&self) -> &Reference {
        &self.0
    }
}

impl std::fmt::Display for ImageName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&self.0, f)
    }
}

impl ImageQuery {
    pub(crate) fn parse(asked: &str) -> Result<Self> {
        if let Some(id) = asked.parse().ok().or_else(|| Digest::from_hex(asked)) {
            return Ok(Self::Id(id));
        }
        ImageName::parse(asked).map(Self::ImageName)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn normalise(name: &str) -> Result<String> {
        ImageName::parse(name).map(|name| name.to_string())
    }

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
    fn a_digest_replaces_the_tag() {
        let digest = Digest::of(b"");
        let name = ImageName::parse(&format!("demo:1@{digest}")).unwrap();
        assert_eq!(name.stored_name(), format!("docker.io/library/demo@{digest}"));
        assert_eq!(name.digest(), Some(digest));
    }

    #[test]
    fn invalid_names_are_rejected() {
        for wrong in ["", "UPPER", "a b", "x:", ":1", "x@sha256:12", "../x", "x/../y", "x@sha512:00"] {
            let error = normalise(wrong).unwrap_err();
            assert_eq!(error.kind(), super::super::Kind::Invalid, "{wrong}");
        }
    }

    proptest! {
        /// All short forms of a name are the same image, and a full name is unchanged.
        #[test]
        fn all_forms_of_a_name_are_equal(name in "[a-z0-9]{1,8}(-[a-z0-9]{1,4})?", tag in "[A-Za-z0-9_][A-Za-z0-9_.-]{0,9}") {
            let whole = full(&format!("docker.io/library/{name}:{tag}"));
            prop_assert_eq!(&full(&format!("{name}:{tag}")), &whole);
            prop_assert_eq!(&full(&format!("docker.io/{name}:{tag}")), &whole);
            prop_assert_eq!(&full(&whole), &whole);
            prop_assert_eq!(full(&name), full(&format!("{name}:latest")));
        }

        #[test]
        fn no_name_causes_a_panic(name in ".{0,80}") {
            if let Ok(name) = ImageName::parse(&name) {
                prop_assert_eq!(full(&name.to_string()), name.to_string());
            }
        }
    }
}
