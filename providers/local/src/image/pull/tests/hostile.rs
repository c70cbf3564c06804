//! Registries that try to use up this host, or to keep others from pulling.

use super::*;
use crate::image::PullLimits;

/// What a client may read of an endless body, with what is in the buffers of the sockets.
const MOST: u64 = 16 * 1024 * 1024;
const MINUTE: Duration = Duration::from_mins(1);

fn impatient(directory: &Path) -> Arc<Store> {
    let pull_limits = PullLimits {
        document_time: Duration::from_secs(1),
        progress_time: Duration::from_secs(1),
        progress_bytes: 1000,
    };
    let settings = Settings { layer_format: Some(LayerFormat::Plain), pull_limits, ..Settings::default() };
    Store::open(directory, settings).unwrap()
}

/// The error of a pull, which must come soon.
async fn refused(store: &Arc<Store>, name: &str) -> Error {
    tokio::time::timeout(MINUTE, store.pull(name, None)).await.expect("an answer in a minute").unwrap_err()
}

fn left(store: &Store) -> usize {
    count(store, "plain") + count(store, "tmp") + count(store, "blobs/sha256")
}

/// Point 28.
#[tokio::test]
async fn an_endless_manifest_costs_at_most_four_mebibytes() {
    let parts = ImageParts::of(&[layer("x")]);
    let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", &parts.manifest);
    entry["platform"] = json!({"os": "linux", "architecture": host_architecture()});
    let index = json!({"schemaVersion": 2, "manifests": [entry]}).to_string();
    let registry = Registry::serve(move |request| match request.path.as_str() {
        "/v2/demo/manifests/index" => Answer::new(200, index.clone()),
        _ => Answer { delivery: Delivery::Endless, ..Answer::new(200, " ".repeat(1024)) },
    })
    .await;
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    for name in ["demo:1", "demo:index"] {
        registry.sent.store(0, Ordering::Relaxed);
        let error = refused(&store, &registry.name(name)).await;
        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
        assert!(error.message().contains("larger than the maximum of 4194304 bytes"), "{error}");
        let sent = registry.sent.load(Ordering::Relaxed);
        assert!(sent < MOST, "{name}: the client read {sent} bytes");
    }
    assert_eq!(left(&store), 0);
}

/// Point 28.
#[tokio::test]
async fn an_endless_token_or_error_is_not_read_to_the_end() {
    let address = Arc::new(Mutex::new(String::new()));
    let known = Arc::clone(&address);
    let endless = |status| Answer { delivery: Delivery::Endless, ..Answer::new(status, " ".repeat(1024)) };
    let registry = Registry::serve(move |request| match request.path.split('?').next().unwrap() {
        "/v2/demo/manifests/error" => endless(503),
        "/token" => endless(200),
        _ => Answer {
            header: format!("WWW-Authenticate: Bearer realm=\"http://{}/token\"\r\n", known.lock()),
            ..Answer::new(401, "{}")
        },
    })
    .await;
    address.lock().clone_from(&registry.address);
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    for (name, kind) in [("demo:error", Kind::Unavailable), ("demo:token", Kind::Corrupt)] {
        registry.sent.store(0, Ordering::Relaxed);
        let error = refused(&store, &registry.name(name)).await;
        assert_eq!(error.kind(), kind, "{error}");
        let sent = registry.sent.load(Ordering::Relaxed);
        assert!(sent < MOST, "{name}: the client read {sent} bytes");
    }
}

/// Point 28.
#[tokio::test]
async fn a_document_that_trickles_is_given_up() {
    let parts = ImageParts::of(&[layer("x")]);
    let content = content(&[("config", &parts)]);
    let id = parts.id();
    let trickle = |body: &[u8]| Answer { delivery: Delivery::Trickle, ..Answer::new(200, body) };
    let registry = Registry::serve(move |request| match request.path.as_str() {
        "/v2/demo/manifests/manifest" => trickle(&[b' '; 10_000]),
        path if path.ends_with(&id) => trickle(&content[path]),
        _ => serve_content(&content, request),
    })
    .await;
    let directory = tempfile::tempdir().unwrap();
    let store = impatient(directory.path());
    for name in ["demo:manifest", "demo:config"] {
        let error = refused(&store, &registry.name(name)).await;
        assert_eq!(error.kind(), Kind::Unavailable, "{error}");
        assert!(error.message().contains("did not answer completely within 1s"), "{error}");
    }
}

/// A pull has an overall progress deadline.
#[tokio::test]
async fn a_pull_whose_layers_trickle_is_given_up() {
    let parts = ImageParts::of(&[layer("x"), layer("y")]);
    let content = content(&[("1", &parts)]);
    let layers: Vec<String> = parts.layers.iter().map(|layer| Digest::of(layer).to_string()).collect();
    let registry = Registry::serve(move |request| {
        let answer = serve_content(&content, request);
        let is_layer = layers.iter().any(|layer| request.path.ends_with(layer));
        Answer { delivery: if is_layer { Delivery::Trickle } else { Delivery::Whole }, ..answer }
    })
    .await;
    let directory = tempfile::tempdir().unwrap();
    let store = impatient(directory.path());
    let error = refused(&store, &registry.name("demo:1")).await;
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(error.message().contains("the registry is too slow"), "{error}");
    assert_eq!(count(&store, "tmp"), 0);
}

/// Neither by the number of its layers, nor by naming the layers of others.
#[tokio::test]
async fn a_slow_registry_does_not_delay_pulls_from_another_one() {
    let base = layer("base");
    let good = ImageParts::of(&[base.clone(), layer("good")]);
    let bad: Vec<ImageParts> = (0..4)
        .map(|n| ImageParts::of(&[base.clone(), layer(&format!("x{n}")), layer(&format!("y{n}"))]))
        .collect();
    let named: Vec<_> = ["0", "1", "2", "3"].into_iter().zip(&bad).collect();
    let (slow_content, good_content) = (content(&named), content(&[("1", &good)]));
    let layers: Vec<String> =
        bad.iter().flat_map(|image| &image.layers).map(|layer| Digest::of(layer).to_string()).collect();
    let (began, mut begun) = mpsc::unbounded_channel();
    let slow = Registry::serve(move |request| {
        let answer = serve_content(&slow_content, request);
        let is_layer = layers.iter().any(|layer| request.path.ends_with(layer));
        if is_layer {
            let _ = began.send(());
        }
        Answer { delivery: if is_layer { Delivery::Trickle } else { Delivery::Whole }, ..answer }
    })
    .await;
    let quick = Registry::serve(move |request| serve_content(&good_content, request)).await;
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let names: Vec<String> = (0..4).map(|n| slow.name(&format!("demo:{n}"))).collect();
    let slow_pulls = futures::future::join_all(names.iter().map(|name| store.pull(name, None)));
    let name = quick.name("demo:1");
    let quick_pull = async {
        // The first image, whose base the others wait for.
        for _ in 0..3 {
            begun.recv().await.unwrap();
        }
        tokio::time::timeout(MINUTE, store.pull(&name, None)).await
    };
    tokio::select! {
        pulled = slow_pulls => panic!("the slow pulls are over: {pulled:?}"),
        pulled = quick_pull => assert_eq!(pulled.expect("within a minute").unwrap().id, good.id()),
    }
}

/// Registries redirect to URLs whose query gives access to everyone who has it.
#[tokio::test]
async fn signed_urls_appear_in_no_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = listener.local_addr().unwrap();
    drop(listener);
    let registry = Registry::serve(move |request| {
        let location = match request.path.split('?').next().unwrap() {
            "/v2/demo/manifests/status" => "/failed?signature=s3cr3t".to_owned(),
            "/v2/demo/manifests/large" => "/endless?signature=s3cr3t".to_owned(),
            "/v2/demo/manifests/loop" => "/v2/demo/manifests/loop?signature=s3cr3t".to_owned(),
            "/v2/demo/manifests/refused" => {
                format!("http://user:s3cr3t@{closed}/blob?signature=s3cr3t#s3cr3t")
            }
            "/endless" => {
                return Answer { delivery: Delivery::Endless, ..Answer::new(200, " ".repeat(1024)) };
            }
            _ => return Answer::new(503, "{}"),
        };
        Answer { header: format!("Location: {location}\r\n"), ..Answer::new(307, "") }
    })
    .await;
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    for (name, part) in [
        ("demo:status", "/failed: 503 Service Unavailable"),
        ("demo:large", "/endless is larger than"),
        ("demo:loop", "too many redirects"),
        ("demo:refused", "Connection refused"),
    ] {
        let error = refused(&store, &registry.name(name)).await;
        let text = format!("{error} {error:?}");
        assert!(text.contains(part), "{text}");
        assert!(!text.contains("s3cr3t"), "{text}");
    }
}
