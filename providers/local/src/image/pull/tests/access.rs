//! Who may use an image that is in the store.

use vk_pod_engine::image::Access;

use super::*;
use crate::image::testing::saved;

/// A registry that gives an image only to `puller` with the password `let-me-in`.
async fn private(parts: &ImageParts) -> Registry {
    let content = content(&[("1", parts)]);
    Registry::serve(move |request| {
        if request.authorization == "Basic cHVsbGVyOmxldC1tZS1pbg==" {
            return serve_content(&content, request);
        }
        Answer { header: "WWW-Authenticate: Basic realm=\"tests\"\r\n".to_owned(), ..Answer::new(401, "{}") }
    })
    .await
}

fn credentials() -> PullCredentials {
    PullCredentials::basic("registry", "puller", "let-me-in")
}

/// Another node on the store, in another process, sees the image and who may use it.
#[tokio::test]
async fn an_image_pulled_with_credentials_is_closed_to_others_on_every_node_of_the_store() {
    let parts = ImageParts::of(&[layer("private")]);
    let registry = private(&parts).await;
    let directory = tempfile::tempdir().unwrap();
    let pulled = store(directory.path()).pull(&registry.name("demo:1"), Some(&credentials())).await.unwrap();
    let other = store(directory.path());
    let owners = Access::Credentials([credentials_hash(&credentials())].into());
    for name in [registry.name("demo:1"), registry.name("demo:2"), pulled.reference.clone()] {
        assert_eq!(other.access(&name, &pulled.id).unwrap(), owners, "{name}");
    }
    for name in ["demo:1", "other.test/demo:1", &pulled.id, &pulled.id["sha256:".len()..][..12]] {
        assert_eq!(other.access(name, &pulled.id).unwrap(), Access::Unknown, "{name}");
    }
    let index = fs::read_to_string(directory.path().join("index.json")).unwrap();
    assert!(!index.contains("let-me-in"), "{index}");
}

/// The image and its access are written at once, so that no crash comes between them. What has no record of
/// its access is closed.
#[tokio::test]
async fn an_image_without_a_record_of_its_access_is_closed() {
    let parts = ImageParts::of(&[layer("private")]);
    let registry = private(&parts).await;
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let pulled = store.pull(&registry.name("demo:1"), Some(&credentials())).await.unwrap();
    let path = directory.path().join("index.json");
    let mut index: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let record = index["images"][&pulled.id].as_object_mut().unwrap();
    assert!(record.remove("access").is_some());
    fs::write(&path, index.to_string()).unwrap();
    assert_eq!(store.access(&registry.name("demo:1"), &pulled.id).unwrap(), Access::Unknown);
    // The next pull shows it.
    store.pull(&registry.name("demo:1"), Some(&credentials())).await.unwrap();
    let access = store.access(&registry.name("demo:1"), &pulled.id).unwrap();
    assert!(matches!(access, Access::Credentials(_)), "{access:?}");
}

#[tokio::test]
async fn an_image_that_was_pulled_anonymously_or_imported_is_open() {
    let parts = ImageParts::of(&[layer("public")]);
    let content = content(&[("1", &parts)]);
    let registry = Registry::serve(move |request| serve_content(&content, request)).await;
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let name = registry.name("demo:1");
    let pulled = store.pull(&name, Some(&credentials())).await.unwrap();
    assert!(matches!(store.access(&name, &pulled.id).unwrap(), Access::Credentials(_)));
    store.pull(&name, None).await.unwrap();
    assert_eq!(store.access(&name, &pulled.id).unwrap(), Access::Everyone);
    assert_eq!(store.access("other.test/demo", &pulled.id).unwrap(), Access::Unknown);

    let imported = store.import(&*saved("tool:1", &parts), &[]).unwrap();
    assert_eq!(imported[0].id, pulled.id, "the same image");
    for name in [&name, "tool:1", "other.test/demo", &pulled.id] {
        assert_eq!(store.access(name, &pulled.id).unwrap(), Access::Everyone, "{name}");
    }
}
