//! The image store with a real registry that requires a password.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path, sync::Arc};

use vk_pod_engine::backend::full_message;
use vk_provider::resolve::PullCredentials;
use vk_provider_local::image::{Error, Kind, LayerFormat, Settings, Store};
use vk_testing::host::{HostResources, Image, Registry};

fn credentials(password: &str) -> PullCredentials {
    PullCredentials::basic("registry", Registry::USER, password)
}

fn store(directory: &Path) -> Arc<Store> {
    Store::open(directory, Settings::default()).expect("a store")
}

/// The text that a kubelet shows on the pod.
fn shown(error: Error) -> String {
    let told = full_message(&error.into());
    told.strip_prefix("rpc error: code = Unknown desc = ").unwrap_or(&told).to_owned()
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_private_image_can_only_be_pulled_with_its_password() {
    let host = HostResources::any();
    let image = Image::new("x/private:3").file("/hello", "#!/bin/sh\necho hello\n").user("7");
    let registry = Registry::start(&host, &[image]).await;
    let directory = tempfile::tempdir().expect("a directory");
    let store = store(directory.path());
    let name = format!("{}/private:3", registry.address());

    let pulled = store.pull(&name, Some(&credentials(Registry::PASSWORD))).await.expect("it is there");
    let stored = store.image(&name).expect("an index").expect("it was pulled");
    assert_eq!(stored.id, pulled.id);
    assert_eq!(stored.to_engine().uid, Some(7));
    assert_eq!(stored.layers.len(), 2);
    assert_eq!(store.layer_format(), LayerFormat::Overlay);
    let tmp = fs::metadata(stored.layers[0].join("tmp")).expect("of the base");
    assert_eq!((tmp.mode() & 0o7777, tmp.uid()), (0o1777, 0));
    let hello = stored.layers[1].join("hello");
    assert_eq!(fs::metadata(&hello).expect("of the layer").mode() & 0o777, 0o755);

    // It is in the store now, which must not give others access.
    let error = store.pull(&name, None).await.expect_err("no password");
    assert_eq!(error.kind(), Kind::Denied);
    assert_eq!(
        shown(error),
        format!(
            "failed to pull and unpack image \"{name}\": failed to resolve image: pull access denied, repository does not exist or \
             may require authorization: authorization failed: no basic auth credentials"
        )
    );
    let error = store.pull(&name, Some(&credentials("a guess"))).await.expect_err("another password");
    assert_eq!(error.kind(), Kind::Denied);
    store.pull(&name, Some(&credentials(Registry::PASSWORD))).await.expect("as before");
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn missing_images_have_the_errors_of_containerd() {
    let host = HostResources::any();
    let image = Image::new("x/foreign:1").architecture("s390x");
    let registry = Registry::start(&host, &[image]).await;
    let directory = tempfile::tempdir().expect("a directory");
    let store = store(directory.path());
    let password = credentials(Registry::PASSWORD);

    let absent = format!("{}/absent:1", registry.address());
    let error = store.pull(&absent, Some(&password)).await.expect_err("it is not there");
    assert_eq!(
        shown(error),
        format!(
            "rpc error: code = NotFound desc = failed to pull and unpack image \"{absent}\": failed to resolve image: {absent}: not found"
        )
    );
    let foreign = format!("{}/foreign:1", registry.address());
    let error = shown(store.pull(&foreign, Some(&password)).await.expect_err("for another machine"));
    let head = "rpc error: code = NotFound desc = get image config descriptor: no match for platform in manifest sha256:";
    assert!(error.starts_with(head) && error.ends_with(": not found"), "{error}");
    assert_eq!(store.list().expect("an index"), []);
    assert_eq!(fs::read_dir(directory.path().join("layers")).expect("layers").count(), 0);
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn images_with_a_shared_layer_are_pulled_concurrently_by_two_stores() {
    let host = HostResources::any();
    let names: Vec<String> = (0..4).map(|number| format!("x/demo:{number}")).collect();
    let images: Vec<Image> = names
        .iter()
        .map(|name| Image::new(name).file("/name", &format!("#!/bin/sh\necho {name}\n")))
        .collect();
    let registry = Registry::start(&host, &images).await;
    let directory = tempfile::tempdir().expect("a directory");
    // Like two processes, which only share the directory.
    let stores = [store(directory.path()), store(directory.path())];
    let password = credentials(Registry::PASSWORD);
    let pulls = (0..8).map(|number| {
        let name = format!("{}/demo:{}", registry.address(), number % 4);
        let (store, password) = (&stores[number / 4], &password);
        async move { store.pull(&name, Some(password)).await.map(|_| name) }
    });
    for pulled in futures::future::join_all(pulls).await {
        let name = pulled.expect("it is there");
        for store in &stores {
            let stored = store.image(&name).expect("an index").expect("it was pulled");
            assert!(stored.layers[0].join("bin/busybox").is_file());
            assert!(stored.layers[1].join("name").is_file());
        }
    }
    assert_eq!(fs::read_dir(directory.path().join("layers")).expect("layers").count(), 5);
    assert_eq!(fs::read_dir(directory.path().join("tmp")).expect("tmp").count(), 0);
}
