//! Tests against a fake registry, which can fail on purpose.

mod access;
mod hostile;

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
};
use vk_provider::resolve::RegistryLogin;

use super::*;
use crate::image::{
    LayerFormat, Settings,
    testing::{ImageParts, TarBuilder, descriptor, host_architecture},
};

/// A request to the registry.
struct Request {
    path: String,
    authorization: String,
}

/// An answer.
#[derive(Clone)]
struct Answer {
    status: u16,
    header: String,
    body: Vec<u8>,
    delivery: Delivery,
}

/// How the body of an answer is sent.
#[derive(Clone, Copy)]
enum Delivery {
    Whole,
    /// Less than was announced.
    Cut(usize),
    /// Again and again.
    Endless,
    /// A byte now and then.
    Trickle,
}

struct Registry {
    address: String,
    asked: Arc<Mutex<Vec<String>>>,
    /// Bytes of bodies.
    sent: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

/// An endless body ends here, so that a client that reads it does not need all memory.
const ENDLESS: u64 = 64 * 1024 * 1024;
/// The time between two bytes of a trickle.
const TRICKLE: Duration = Duration::from_millis(20);

impl Answer {
    fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, header: String::new(), body: body.into(), delivery: Delivery::Whole }
    }

    async fn send(self, stream: &mut TcpStream, sent: &AtomicU64) -> std::io::Result<()> {
        let (status, header, length) = (self.status, &self.header, self.body.len());
        let length = match self.delivery {
            Delivery::Endless => String::new(),
            _ => format!("Content-Length: {length}\r\n"),
        };
        let head = format!("HTTP/1.1 {status} x\r\nConnection: close\r\n{length}{header}\r\n");
        stream.write_all(head.as_bytes()).await?;
        match self.delivery {
            Delivery::Whole => stream.write_all(&self.body).await?,
            Delivery::Cut(length) => stream.write_all(&self.body[..length]).await?,
            Delivery::Endless => {
                let body = self.body.repeat(65536 / self.body.len());
                while sent.fetch_add(body.len() as u64, Ordering::Relaxed) < ENDLESS {
                    stream.write_all(&body).await?;
                }
            }
            Delivery::Trickle => {
                for byte in self.body {
                    stream.write_all(&[byte]).await?;
                    sleep(TRICKLE).await;
                }
            }
        }
        Ok(())
    }
}

impl Registry {
    async fn serve(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (answer, known) = (Arc::new(answer), Arc::clone(&asked));
        let sent = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&sent);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let (answer, known, sent) = (Arc::clone(&answer), Arc::clone(&known), Arc::clone(&counter));
                connections.spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        let Ok(byte) = stream.read_u8().await else { return };
                        head.push(byte);
                    }
                    let head = String::from_utf8(head).unwrap();
                    let path = head.split(' ').nth(1).unwrap().to_owned();
                    let authorization = head
                        .lines()
                        .find_map(|line| {
                            line.to_lowercase().starts_with("authorization: ").then(|| line[15..].to_owned())
                        })
                        .unwrap_or_default();
                    known.lock().push(path.clone());
                    let _ = answer(&Request { path, authorization }).send(&mut stream, &sent).await;
                });
            }
        });
        Self { address, asked, sent, _tasks: tasks }
    }

    fn name(&self, rest: &str) -> String {
        format!("{}/{rest}", self.address)
    }

    /// How often a path was requested.
    fn count(&self, part: &str) -> usize {
        self.asked.lock().iter().filter(|path| path.contains(part)).count()
    }
}

/// The content of a registry with images under `demo/TAG`, by path.
fn content(images: &[(&str, &ImageParts)]) -> BTreeMap<String, Vec<u8>> {
    let mut content = BTreeMap::new();
    for (tag, parts) in images {
        content.insert(format!("/v2/demo/manifests/{tag}"), parts.manifest.clone());
        content.insert(format!("/v2/demo/manifests/{}", parts.digest()), parts.manifest.clone());
        for (digest, blob) in parts.blobs() {
            content.insert(format!("/v2/demo/blobs/{digest}"), blob);
        }
    }
    content
}

fn serve_content(content: &BTreeMap<String, Vec<u8>>, request: &Request) -> Answer {
    match content.get(&request.path) {
        Some(body) => Answer::new(200, body.clone()),
        None if request.path == "/v2/" => Answer::new(200, "{}"),
        None => Answer::new(404, r#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}"#),
    }
}

fn store(directory: &Path) -> Arc<Store> {
    Store::open(directory, Settings { layer_format: Some(LayerFormat::Plain), ..Settings::default() })
        .unwrap()
}

fn layer(name: &str) -> (Vec<u8>, Vec<u8>) {
    // Large enough to come in several chunks.
    let noise: Vec<u8> = (0..200_000u64)
        .flat_map(|n| Digest::of(format!("{name}{n}").as_bytes()).hex().into_bytes())
        .take(400_000)
        .collect();
    let builder = TarBuilder::new().file(name, noise);
    (builder.bytes(), builder.gzip())
}

fn count(store: &Store, place: &str) -> usize {
    fs::read_dir(store.directory().join(place)).unwrap().count()
}

#[tokio::test]
async fn the_image_for_this_platform_is_pulled_with_layers_of_any_compression() {
    let (first, second) = (layer("first"), layer("second").0);
    let zstd = zstd::encode_all(&*second, 0).unwrap();
    let third = layer("third").0;
    let ours = ImageParts::of(&[first, (second, zstd), (third.clone(), third)]);
    let foreign = ImageParts::for_architecture("s390x", &[]);
    let kind = "application/vnd.docker.distribution.manifest.v2+json";
    let (mut near, mut far) = (descriptor(kind, &ours.manifest), descriptor(kind, &foreign.manifest));
    near["platform"] = json!({"os": "linux", "architecture": host_architecture()});
    far["platform"] = json!({"os": "linux", "architecture": "s390x"});
    let index = json!({"schemaVersion": 2, "manifests": [far, near]}).to_string().into_bytes();
    let mut content = content(&[("x", &ours)]);
    content.insert("/v2/demo/manifests/1".into(), index.clone());
    let registry = Registry::serve(move |request| serve_content(&content, request)).await;
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());

    let pulled = store.pull(&registry.name("demo:1"), None).await.unwrap();
    assert_eq!(pulled.id, ours.id());
    assert_eq!(pulled.reference, registry.name(&format!("demo@{}", Digest::of(&index))));
    let stored = store.image(&registry.name("demo:1")).unwrap().unwrap();
    assert_eq!(store.image(&pulled.reference).unwrap().as_ref(), Some(&stored));
    assert_eq!(
        (&stored.tags[..], &stored.digests[..]),
        (&[registry.name("demo:1")][..], &[pulled.reference.clone()][..])
    );
    for (number, name) in ["first", "second", "third"].iter().enumerate() {
        assert_eq!(fs::metadata(stored.layers[number].join(name)).unwrap().len(), 400_000);
    }
    assert_eq!(count(&store, "tmp"), 0);
    // On the second pull, the registry is asked for the manifest, but for no layer.
    assert_eq!(store.pull(&registry.name("demo:1"), None).await.unwrap(), pulled);
    assert_eq!(registry.count("/manifests/1"), 2);
    assert_eq!(registry.count(&Digest::of(&ours.layers[0]).to_string()), 1);
}

#[tokio::test]
async fn a_missing_image_and_a_wrong_platform_have_the_errors_of_containerd() {
    let foreign = ImageParts::for_architecture("s390x", &[layer("x")]);
    let content = content(&[("foreign", &foreign)]);
    let registry = Registry::serve(move |request| serve_content(&content, request)).await;
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let absent = registry.name("demo:absent");
    let error = store.pull(&absent, None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    assert_eq!(
        vk_pod_engine::backend::full_message(&error.into()),
        format!(
            "rpc error: code = NotFound desc = failed to pull and unpack image \"{absent}\": failed to resolve image: {absent}: not found"
        )
    );
    let error = store.pull(&registry.name("demo:foreign"), None).await.unwrap_err();
    assert_eq!(
        vk_pod_engine::backend::full_message(&error.into()),
        format!(
            "rpc error: code = NotFound desc = get image config descriptor: no match for platform in manifest {}: not found",
            foreign.digest()
        )
    );
    assert_eq!(count(&store, "plain") + count(&store, "tmp") + count(&store, "blobs/sha256"), 0);
}

#[tokio::test]
async fn content_that_does_not_match_its_digest_is_rejected_and_nothing_is_kept() {
    let parts = ImageParts::of(&[layer("first"), layer("second")]);
    let mut wrong_layer = content(&[("1", &parts)]);
    wrong_layer.insert(format!("/v2/demo/blobs/{}", Digest::of(&parts.layers[1])), parts.layers[0].clone());
    let mut wrong_config = content(&[("1", &parts)]);
    wrong_config.insert(format!("/v2/demo/blobs/{}", parts.id()), b"{}".to_vec());
    for content in [wrong_layer, wrong_config] {
        let registry = Registry::serve(move |request| serve_content(&content, request)).await;
        let directory = tempfile::tempdir().unwrap();
        let store = store(directory.path());
        let error = store.pull(&registry.name("demo:1"), None).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
        assert!(error.message().starts_with("failed to pull and unpack image"), "{error}");
        assert_eq!(store.image(&registry.name("demo:1")).unwrap(), None);
        assert_eq!(count(&store, "plain") + count(&store, "tmp") + count(&store, "blobs/sha256"), 0);
    }
}

#[tokio::test]
async fn a_name_with_a_digest_pulls_exactly_that_image() {
    let (one, two) = (ImageParts::of(&[layer("one")]), ImageParts::of(&[layer("two")]));
    let mut content = content(&[("1", &one)]);
    let name = format!("demo@{}", two.digest());
    content.insert(format!("/v2/demo/manifests/{}", two.digest()), one.manifest.clone());
    let registry = Registry::serve(move |request| serve_content(&content, request)).await;
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let error = store.pull(&registry.name(&name), None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    let name = registry.name(&format!("demo:1@{}", one.digest()));
    let pulled = store.pull(&name, None).await.unwrap();
    assert_eq!(store.image(&name).unwrap().unwrap().id, pulled.id);
    assert_eq!(store.image(&name).unwrap().unwrap().tags, [""; 0]);
}

#[tokio::test]
async fn an_interrupted_download_is_retried() {
    let parts = ImageParts::of(&[layer("first")]);
    let (content, layer) = (content(&[("1", &parts)]), Digest::of(&parts.layers[0]).to_string());
    let broken = Mutex::new(0);
    let registry = Registry::serve(move |request| {
        let mut answer = serve_content(&content, request);
        if request.path.contains(&layer) && *broken.lock() < 1 {
            *broken.lock() += 1;
            answer.delivery = Delivery::Cut(answer.body.len() / 2);
        }
        answer
    })
    .await;
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    store.pull(&registry.name("demo:1"), None).await.unwrap();
    assert_eq!(registry.count(&Digest::of(&parts.layers[0]).to_string()), 2);
}

#[tokio::test]
async fn an_unreachable_registry_is_unavailable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let directory = tempfile::tempdir().unwrap();
    let error = store(directory.path()).pull(&format!("{address}/demo:1"), None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(
        error.message().contains("failed to do request") && error.message().contains("refused"),
        "{error}"
    );
}

#[tokio::test]
async fn a_token_is_only_used_with_the_credentials_it_was_issued_for() {
    let parts = ImageParts::of(&[layer("private")]);
    let content = content(&[("1", &parts)]);
    let address = Arc::new(Mutex::new(String::new()));
    let known = Arc::clone(&address);
    let registry = Registry::serve(move |request| {
        // puller:let-me-in
        let good = request.authorization == "Basic cHVsbGVyOmxldC1tZS1pbg==";
        match request.path.split('?').next().unwrap() {
            "/token" if good => Answer::new(200, r#"{"token":"good"}"#),
            "/token" if request.authorization.is_empty() => Answer::new(200, r#"{"token":"anonymous"}"#),
            "/token" => Answer::new(401, "{}"),
            _ if request.authorization == "Bearer good" => serve_content(&content, request),
            _ => Answer {
                header: format!(
                    "WWW-Authenticate: Bearer realm=\"http://{}/token\",service=\"tests\"\r\n",
                    known.lock()
                ),
                ..Answer::new(
                    401,
                    r#"{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}"#,
                )
            },
        }
    })
    .await;
    address.lock().clone_from(&registry.address);
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let name = registry.name("demo:1");
    let basic = |password: &str| PullCredentials::basic("registry", "puller", password);
    store.pull(&name, Some(&basic("let-me-in"))).await.unwrap();
    store.pull(&name, Some(&basic("let-me-in"))).await.unwrap();
    // One token for both pulls.
    assert_eq!(registry.count("/token"), 1);
    for credentials in [None, Some(basic("guess"))] {
        let error = store.pull(&name, credentials.as_ref()).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Denied);
        assert!(error.message().contains("pull access denied"), "{error}");
    }
    store.pull(&name, Some(&basic("let-me-in"))).await.unwrap();
    let login = RegistryLogin::RegistryToken("good".into());
    let token = PullCredentials { registry: "registry".into(), login };
    store.pull(&name, Some(&token)).await.unwrap();
}

#[tokio::test]
async fn concurrent_pulls_download_a_shared_layer_once() {
    let base = layer("base");
    let images: Vec<ImageParts> =
        (0..4).map(|n| ImageParts::of(&[base.clone(), layer(&n.to_string())])).collect();
    let named: Vec<_> = ["0", "1", "2", "3"].into_iter().zip(&images).collect();
    let content = content(&named);
    let registry = Registry::serve(move |request| serve_content(&content, request)).await;
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let names: Vec<String> = (0..8).map(|n| registry.name(&format!("demo:{}", n % 4))).collect();
    let pulled = futures::future::join_all(names.iter().map(|name| store.pull(name, None))).await;
    for (number, pulled) in pulled.into_iter().enumerate() {
        assert_eq!(pulled.unwrap().id, images[number % 4].id());
    }
    assert_eq!(registry.count(&Digest::of(&base.1).to_string()), 1);
    assert_eq!(count(&store, "plain"), 5);
    assert_eq!(count(&store, "tmp"), 0);
}

#[tokio::test]
async fn a_cancelled_pull_leaves_nothing_behind() {
    let parts = ImageParts::of(&[layer("first")]);
    let (content, layer) = (content(&[("1", &parts)]), Digest::of(&parts.layers[0]).to_string());
    let (stalled, mut waiting) = mpsc::unbounded_channel();
    let registry = Registry::serve(move |request| {
        let mut answer = serve_content(&content, request);
        if request.path.contains(&layer) {
            // The body is shorter than announced.
            answer.delivery = Delivery::Cut(answer.body.len() / 2);
            let _ = stalled.send(());
        }
        answer
    })
    .await;
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let name = registry.name("demo:1");
    {
        let pull = store.pull(&name, None);
        tokio::pin!(pull);
        tokio::select! {
            answer = &mut pull => panic!("{answer:?}"),
            _ = waiting.recv() => {}
        }
    }
    tokio::time::timeout(Duration::from_secs(30), async {
        while count(&store, "tmp") > 0 {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
    assert_eq!(count(&store, "plain"), 0);
}
