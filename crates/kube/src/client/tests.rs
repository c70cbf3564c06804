use std::fmt::Write as _;

use super::*;

fn kubeconfig(server: &str, token: &str) -> String {
    let mut text = String::from("apiVersion: v1\nkind: Config\ncurrent-context: main\n");
    write!(
        text,
        "clusters: [{{name: c, cluster: {{server: \"{server}\"}}}}]\n\
         users: [{{name: u, user: {{token: {token}}}}}]\n\
         contexts: [{{name: main, context: {{cluster: c, user: u}}}}]\n"
    )
    .unwrap();
    text
}

async fn connect(path: PathBuf) -> Result<Client, ConfigError> {
    let source = ClientOptions { kubeconfig: Some(path), server: None };
    source.connect(&Supervisor::new(), Metrics::default()).await
}

async fn connect_error(path: PathBuf) -> String {
    connect(path).await.err().expect("the kubeconfig must be rejected").to_string()
}

#[tokio::test]
async fn a_missing_or_malformed_kubeconfig_is_named_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let missing = connect_error(dir.path().join("nowhere")).await;
    assert!(missing.contains("nowhere") && missing.contains("--kubeconfig"), "{missing}");

    let broken = dir.path().join("broken");
    fs::write(&broken, "clusters: [").unwrap();
    let malformed = connect_error(broken).await;
    assert!(malformed.contains("broken") && !malformed.contains('\n'), "{malformed}");

    let empty = dir.path().join("empty");
    fs::write(&empty, "apiVersion: v1\nkind: Config\n").unwrap();
    let without_context = connect_error(empty).await;
    assert!(without_context.contains("empty"), "{without_context}");
}

#[tokio::test(start_paused = true)]
async fn credentials_that_could_not_be_loaded_are_loaded_again_without_another_change_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let (path, token) = (dir.path().join("config"), dir.path().join("token"));
    fs::write(&path, kubeconfig("http://127.0.0.1:1", "a")).unwrap();
    let mut client = connect(path.clone()).await.unwrap();
    assert!(!client.renewed());

    let changed = kubeconfig("http://127.0.0.1:1", "b");
    let changed = changed.replace("token: b", &format!("tokenFile: {}", token.display()));
    fs::write(&path, changed).unwrap();
    tokio::time::sleep(RELOAD_PERIOD * 2).await;
    assert!(!client.renewed(), "the token is missing");

    fs::write(&token, "b").unwrap();
    tokio::time::sleep(RELOAD_PERIOD * 2).await;
    assert!(client.renewed());
    tokio::time::sleep(RELOAD_PERIOD * 2).await;
    assert!(!client.renewed(), "once");
}

#[tokio::test(start_paused = true)]
async fn a_changed_kubeconfig_is_used_and_a_broken_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config");
    fs::write(&path, kubeconfig("http://127.0.0.1:1", "a")).unwrap();
    let mut client = connect(path.clone()).await.unwrap();
    assert!(!client.renewed());

    fs::write(&path, kubeconfig("http://127.0.0.1:1", "b")).unwrap();
    tokio::time::sleep(RELOAD_PERIOD * 2).await;
    assert!(client.renewed());

    fs::write(&path, "half-writ").unwrap();
    tokio::time::sleep(RELOAD_PERIOD * 2).await;
    assert!(!client.renewed());
}
