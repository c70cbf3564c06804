//! The subcommands other than `run`.

use std::{
    io::Read,
    process::{Command, Stdio},
};

use crate::vk;

#[test]
fn providers_are_listed_in_a_table() {
    let text = vk(&["providers"]).run().ok();
    let mut lines = text.lines();
    let head = lines.next().unwrap();
    assert!(
        head.starts_with("NAME") && head.contains("DESCRIPTION") && head.ends_with("ABILITIES"),
        "{text}"
    );
    let cluster = lines.next().unwrap();
    assert!(cluster.starts_with("cluster ") && cluster.ends_with("port-forward, stats, fit"), "{text}");
    let cri = lines.next().unwrap();
    assert!(cri.starts_with("cri ") && cri.ends_with("logs, exec, attach, port-forward, stats"), "{text}");
    let eci = lines.next().unwrap();
    assert!(eci.starts_with("eci ") && eci.ends_with("logs, exec, stats"), "{text}");
    let local = lines.next().unwrap();
    assert!(
        local.starts_with("local ") && local.ends_with("logs, exec, attach, port-forward, stats"),
        "{text}"
    );
    let mock = lines.next().unwrap();
    assert!(mock.starts_with("mock "), "{text}");
    let one = vk(&["providers", "mock"]).run().ok();
    assert!(one.contains("mock ") && !one.contains("cri "), "{one}");
}

#[test]
fn an_unknown_provider_ends_with_1_as_in_the_go_original() {
    vk(&["providers", "nosuch"]).run().refused(1, &[&["`nosuch`", "known: cluster, cri, eci, local, mock"]]);
    vk(&["providers", "mocc"]).run().refused(1, &[&["`mocc`", "did you mean `mock`?"]]);
}

#[test]
fn doctor_reports_problems_with_hints_and_exits_with_1() {
    let run = vk(&["doctor", "--provider", "cri", "--provider-config", "cri.yaml"]);
    run.write("cri.yaml", "socket: /nonexistent/cri.sock\n");
    let seen = run.run();
    assert_eq!(seen.code, 1, "{seen:#?}");
    let line = seen.stdout.lines().find(|line| line.contains("runtime socket: ")).unwrap();
    assert!(line.starts_with("error ") && line.contains("/nonexistent/cri.sock -> "), "{line}");
    assert!(seen.stdout.lines().any(|line| line.contains("cgroups: ")), "{seen:#?}");
    assert!(seen.stderr.starts_with("error: ") && seen.stderr.lines().count() == 1, "{seen:#?}");
}

#[test]
fn doctor_checks_the_local_provider_by_default() {
    for arguments in
        [&["doctor", "--state-dir", "state"][..], &["doctor", "--provider", "local", "--state-dir", "state"]]
    {
        let run = vk(arguments);
        let folder = run.folder.path().to_owned();
        let seen = run.run();
        let first = seen.stdout.lines().next().unwrap_or_default();
        assert!(
            first.contains("isolation: level oci") || first.contains("isolation: level process"),
            "{seen:#?}"
        );
        for what in ["user: ", "namespaces: ", "cgroups: ", "overlay: ", "image store: "] {
            assert!(seen.stdout.lines().any(|line| line.contains(what)), "{what} in {seen:#?}");
        }
        assert!(!folder.join("state").exists(), "it changes nothing");
    }
}

#[test]
fn an_unavailable_isolation_level_is_an_error_with_the_reason() {
    let run =
        vk(&["doctor", "--provider", "local", "--state-dir", "/proc/nowhere", "--provider-config", "l.yaml"]);
    run.write("l.yaml", "level: oci\n");
    let seen = run.run();
    assert_eq!(seen.code, 1, "nothing can be written below /proc: {seen:#?}");
    assert!(seen.stdout.lines().any(|line| line.starts_with("error ") && line.contains(" -> ")), "{seen:#?}");
}

#[test]
fn image_list_creates_a_missing_store() {
    let text = vk(&["image", "list", "--state-dir", "state"]).run().ok();
    assert_eq!(text, "NAME  ID  SIZE\n");
    let json = vk(&["image", "list", "-o", "json", "--state-dir", "state"]).run().ok();
    assert_eq!(json, "[]\n");
}

#[test]
fn missing_and_invalid_images_are_named_in_errors() {
    let missing = vk(&["image", "rm", "nosuch:1", "--state-dir", "state"]).run();
    missing.refused(1, &[&["nosuch:1", "image list"]]);
    let run = vk(&["image", "import", "x.tar", "--state-dir", "state"]);
    let seen = run.run();
    assert_eq!(seen.code, 1, "{seen:#?}");
    assert!(seen.stderr.contains("error: cannot import x.tar: cannot open x.tar"), "{seen:#?}");
    let run = vk(&["image", "import", "x.tar", "--state-dir", "state"]);
    run.write("x.tar", "this is no archive");
    let seen = run.run();
    assert_eq!(seen.code, 1, "{seen:#?}");
    assert!(seen.stderr.contains("error: cannot import x.tar: "), "{seen:#?}");
    vk(&["image", "list", "--provider", "mock"]).run().refused(2, &[&["provider:", "local"]]);
}

#[test]
fn an_imported_image_is_listed_under_its_names_until_it_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let (state, archive) = (folder.path().join("state"), folder.path().join("demo.tar"));
    let busybox = vk_provider_local::demo::busybox().expect("dev/setup installs it");
    std::fs::write(&archive, vk_provider_local::demo::archive(&busybox).unwrap()).unwrap();
    let (state, archive) = (state.to_str().unwrap(), archive.to_str().unwrap());
    let image = |arguments: &[&str]| vk(&[&["image"], arguments, &["--state-dir", state]].concat()).run();
    let imported = image(&["import", archive]);
    assert_eq!(imported.code, 0, "{imported:#?}");
    assert!(
        imported.stdout.contains("demo:1") && imported.stderr.starts_with("importing: "),
        "{imported:#?}"
    );
    let named = image(&["import", archive, "--name", "one:2", "--name", "registry.example/two:3"]);
    assert_eq!(named.code, 0, "{named:#?}");
    let list = image(&["ls"]).ok();
    for name in ["demo:1", "one:2", "registry.example/two:3"] {
        assert!(list.lines().any(|line| line.contains(name) && line.contains("MiB")), "{name} in {list}");
    }
    let json: serde_json::Value = serde_json::from_str(&image(&["list", "--output", "json"]).ok()).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 1, "one image with three names: {json}");
    assert!(json[0]["id"].as_str().unwrap().starts_with("sha256:"), "{json}");
    assert!(image(&["rm", "demo:1", "one:2"]).ok().contains("demo:1"));
    assert!(
        image(&["rm", "registry.example/two:3"]).ok().contains("sha256:"),
        "the last name takes the image along"
    );
    assert_eq!(image(&["list"]).ok(), "NAME  ID  SIZE\n");
}

#[test]
fn doctor_finds_problems_in_a_provider_configuration() {
    let run = vk(&["doctor", "--provider", "cri", "--provider-config", "wrong.yaml"]);
    run.write("wrong.yaml", "sokcet: /x\n");
    let seen = run.run();
    assert_eq!(seen.code, 1, "{seen:#?}");
    assert!(seen.stdout.starts_with("error ") && seen.stdout.contains("did you mean `socket`?"), "{seen:#?}");
}

#[test]
fn a_provider_without_checks_is_ok() {
    let text = vk(&["doctor", "--provider", "mock"]).run().ok();
    assert!(text.starts_with("ok ") && text.contains("mock"), "{text}");
}

#[test]
fn doctor_of_a_cloud_without_a_cluster_says_which_key_to_set() {
    let run = vk(&["doctor", "--provider", "eci", "--provider-config", "eci.yaml"]);
    // Nothing listens there.
    run.write(
        "eci.yaml",
        "region: cn-hangzhou\nvSwitches: [vsw-a]\nsecurityGroup: sg-1\nendpoint: http://127.0.0.1:1\n\
         accessKey: id\nsecretKey: secret\n",
    );
    let seen = run.run();
    assert_eq!(seen.code, 1, "{seen:#?}");
    let line = |what: &str| seen.stdout.lines().find(|line| line.starts_with(what)).unwrap().to_owned();
    assert!(line("error    cluster: ").contains("-> set clusterName"), "{seen:#?}");
    let why = line("warning  cluster id: cannot read the UID of the namespace kube-system: ");
    assert!(why.contains("--kubeconfig"), "{seen:#?}");
}

#[test]
fn version_prints_the_kubelet_version() {
    let text = vk(&["version"]).run().ok();
    assert!(text.starts_with(&format!("virtual-kubelet {}\n", env!("CARGO_PKG_VERSION"))), "{text}");
    assert!(text.contains(&virtual_kubelet::kubelet_version()), "{text}");
    assert!(text.contains("rustc 1."), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&vk(&["version", "--output", "json"]).run().ok()).unwrap();
    assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(json["kubeletVersion"], virtual_kubelet::kubelet_version());
    assert_eq!(json["kubernetesVersion"], virtual_kubelet::KUBERNETES_VERSION);
    assert!(json["gitCommit"].is_string() && json["rustc"].is_string());
    assert!(vk(&["--version"]).run().ok().contains(env!("CARGO_PKG_VERSION")));
}

#[test]
fn completions_exist_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = vk(&["completions", shell]).run().ok();
        assert!(script.contains("virtual-kubelet") && script.contains("nodename"), "{shell}");
    }
}

#[test]
fn help_succeeds_and_names_variables() {
    let text = vk(&["run", "--help"]).run().ok();
    assert!(text.contains("VK_PORT, KUBELET_PORT"), "{text}");
    assert!(!text.contains("--klog.v"), "deprecated flags are hidden");
    let line = text.lines().find(|line| line.trim_start().starts_with("--port ")).unwrap();
    assert!(line.contains("KUBELET_PORT"), "one line per option: {text}");
    let help = vk(&["--help"]).run().ok();
    assert!(help.contains("providers") && help.contains("image"), "{help}");
    assert!(!help.contains("guardian") && !help.contains("shim"), "internal commands are hidden: {help}");
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_virtual-kubelet"))
        .args(["config", "schema"])
        .env_clear()
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(stderr, "");
}

#[test]
fn the_placement_policy_is_printed_for_the_version_of_the_api_server() {
    let print = |more: &[&str]| vk(&[&["placement", "print", "policy"][..], more].concat()).run();
    let policy = print(&["--server-version", "1.36"]).ok();
    let published =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/placement/policy.yaml"));
    assert_eq!(policy, published.unwrap());
    let open = print(&["--server-version", "1.37", "--fail-open", "--upper-keys", "type,pool"]).ok();
    for words in ["failurePolicy: Ignore", "upperKeys: \"type,pool\""] {
        assert!(open.contains(words), "{words}: {open}");
    }
    for version in ["1.33", "1.36"] {
        assert!(!print(&["--server-version", version]).stderr.contains("tested"), "{version}");
    }
    let untested = print(&["--server-version", "1.32"]);
    let warning = "warning: the API server is of version 1.32; placement is tested with 1.33 and later";
    assert!(untested.stderr.contains(warning), "{untested:#?}");
    assert!(untested.stdout.contains("kind: MutatingWebhookConfiguration"), "{untested:#?}");
    let older = print(&["--server-version", "1.35"]);
    assert!(older.stdout.contains("kind: MutatingWebhookConfiguration"), "{older:#?}");
    assert!(older.stderr.starts_with("warning: ") && older.stderr.contains("--webhook-ca"), "{older:#?}");
}

#[test]
fn an_api_server_that_does_not_answer_is_an_error_with_a_way_out() {
    let run = vk(&["placement", "print", "policy", "--kubeconfig", "config"]);
    run.write(
        "config",
        "{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], \
         users: [{name: u, user: {token: t}}], contexts: [{name: c, context: {cluster: c, user: u}}]}",
    );
    run.run().refused(1, &[&["http://127.0.0.1:1", "--server-version"]]);
    vk(&["placement", "print", "policy", "--server-version", "two"])
        .run()
        .refused(2, &[&["two", "such as 1.33"]]);
}

#[test]
fn the_webhook_needs_both_files_of_its_certificate_or_an_api_server() {
    vk(&["webhook", "--tlscert", "a.crt"]).run().refused(2, &[&["placement.tls.keyFile", "set both"]]);
    vk(&["webhook", "--tlscert", "none.crt", "--tlskey", "none.key"]).run().refused(2, &[&["none.crt"]]);
    let alone =
        vk(&["webhook", "--kubeconfig", "missing"]).env("VK_METRICS_ADDR", "off").env("VK_LOG_LEVEL", "warn");
    alone.run().refused(2, &[&["kubeconfig", "missing"]]);
}

#[test]
fn placement_says_what_can_be_switched_on_and_what_is_wrong() {
    vk(&["placement"]).run().refused(2, &[&["placement: is off", "--gates estimate", "--extender-listen"]]);
    let nonsense = [
        "placement",
        "--extender-listen",
        "127.0.0.1:8443",
        "--webhook-listen",
        ":8443",
        "--server-names",
        "https://a",
    ];
    vk(&nonsense).run().refused(
        2,
        &[&["placement.webhook.listen", "another port"], &["placement.tls.serverNames", "https://a"]],
    );
    vk(&["extender", "--extender-listen", "8443"]).run().refused(2, &[&["8443", "`:8443`"]]);
    vk(&["extender", "--tlscert", "none.crt", "--tlskey", "none.key", "--client-ca", "none.crt"])
        .run()
        .refused(2, &[&["none.crt"]]);
}

#[test]
fn the_configuration_of_a_scheduler_is_printed_with_a_ca_and_without_an_api_server() {
    let signed = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
    let print_with = |ca: &str, more: &[&str]| {
        let client = ["--client-cert", "client.crt", "--client-key", "client.key"];
        let run = vk(&[&["placement", "print", "scheduler", "--ca", ca][..], &client, more].concat());
        run.write("ca.crt", &signed.cert.pem());
        run.write("client.crt", &signed.cert.pem());
        run.write("client.key", &signed.signing_key.serialize_pem());
        run.write("empty.crt", "");
        run.run()
    };
    let print = |more: &[&str]| print_with("ca.crt", more);
    let second = print(&[]).ok();
    for words in [
        "schedulerName: \"multicluster\"",
        "resourceName: \"multicluster\"",
        "urlPrefix: \"https://virtual-kubelet-placement.kube-system.svc:8443\"",
        "httpTimeout: 1s",
    ] {
        assert!(second.contains(words), "{words}: {second}");
    }
    let existing =
        print(&["--scheduler-name", "default-scheduler", "--url", "https://[fd00::1]:443/", "--weight", "9"])
            .ok();
    assert!(
        existing.contains("urlPrefix: \"https://[fd00::1]:443\"") && existing.contains("weight: 9"),
        "{existing}"
    );
    assert!(!existing.contains("leaderElection"), "{existing}");
    print_with("empty.crt", &[]).refused(2, &[&["empty.crt", "no certificate"]]);
    print_with("missing.crt", &[]).refused(1, &[&["missing.crt"]]);
    print(&["--url", "http://a:1"]).refused(2, &[&["http://a:1", "https://host:port"]]);
    print(&["--scheduler-name", "a b"]).refused(2, &[&["a b"]]);
    print(&["--weight", "0"]).refused(2, &[&["1..=1000"]]);
}
