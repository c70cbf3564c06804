//! Images and registry credentials.

use secrecy::ExposeSecret as _;
use vk_pod_engine::backend::Image;
use vk_provider::resolve::{PullCredentials, RegistryLogin};

use crate::proto;

pub(crate) fn image(image: proto::Image) -> Image {
    Image {
        id: image.id,
        tags: image.repo_tags,
        digests: image.repo_digests,
        size: image.size,
        uid: image.uid.map(|uid| uid.value),
        username: image.username,
        pinned: image.pinned,
    }
}

/// All names of an image that was started or mounted.
pub(crate) fn image_names(spec: proto::ImageSpec) -> [String; 3] {
    [spec.image, spec.user_specified_image, spec.image_ref]
}

pub(crate) fn auth(credentials: &PullCredentials) -> proto::AuthConfig {
    let mut auth = proto::AuthConfig::default();
    match &credentials.login {
        RegistryLogin::Basic { username, password } => {
            auth.username.clone_from(username);
            password.expose_secret().clone_into(&mut auth.password);
        }
        RegistryLogin::IdentityToken(token) => {
            token.expose_secret().clone_into(&mut auth.identity_token);
        }
        RegistryLogin::RegistryToken(token) => {
            token.expose_secret().clone_into(&mut auth.registry_token);
        }
    }
    auth
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_reach_the_wire_and_no_log() {
        let credentials = PullCredentials::basic("example.com", "me", "hidden");
        let auth = auth(&credentials);
        assert_eq!((auth.username.as_str(), auth.password.as_str()), ("me", "hidden"));
        let shown = format!("{:?}", proto::PullImageRequest { auth: Some(auth), ..Default::default() });
        assert!(shown.contains("me") && !shown.contains("hidden"), "{shown}");
    }
}
