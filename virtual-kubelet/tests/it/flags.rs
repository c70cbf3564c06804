//! All flags of the Go original are accepted.

use serde_json::Value;

use crate::vk;

/// `config dump` with the provider and these flags; fails on warnings.
#[track_caller]
fn dump(flags: &[&str]) -> Value {
    let arguments: Vec<&str> = ["config", "dump", "--provider=mock"].iter().chain(flags).copied().collect();
    serde_saphyr::from_str(&vk(&arguments).run().ok()).unwrap()
}

#[test]
fn flags_of_the_go_original_have_the_same_meaning() {
    for (flags, pointer, expected) in [
        (&["--kubeconfig", "/k"][..], "/kubeconfig", "/k"),
        (&["--cluster-domain", "example.org"], "/nodes/0/clusterDomain", "example.org"),
        (&["--nodename", "n"], "/nodes/0/name", "n"),
        (&["--hostname", "n.example.com"], "/nodes/0/hostname", "n.example.com"),
        (&["--os", "windows"], "/nodes/0/os", "windows"),
        (&["--os", "Linux"], "/nodes/0/os", "linux"),
        (&["--provider", "mock"], "/nodes/0/provider", "mock"),
        (&["--metrics-addr", "127.0.0.1:1"], "/metricsAddr", "127.0.0.1:1"),
        (&["--metrics-addr", ""], "/metricsAddr", "off"),
        (&["--taint", "example.com/k"], "/nodes/0/taints/0/key", "example.com/k"),
        (&["--startup-timeout", "1m30s"], "/startupTimeout", "1m30s"),
        (&["--stream-idle-timeout", "30s"], "/streamIdleTimeout", "30s"),
        (&["--stream-creation-timeout=1h"], "/streamCreationTimeout", "1h"),
        (&["--log-level", "panic"], "/log/level", "panic"),
        (&["--client-verify-ca", "/ca"], "/tls/clientCAFile", "/ca"),
        (&["--authentication-token-webhook-cache-ttl", "7s"], "/auth/tokenTTL", "7s"),
        (&["--authorization-webhook-cache-authorized-ttl", "8s"], "/auth/authorizedTTL", "8s"),
        (&["--authorization-webhook-cache-unauthorized-ttl", "0"], "/auth/unauthorizedTTL", "30s"),
        (&["--nodename", "first", "--nodename", "last"], "/nodes/0/name", "last"),
        (&["--labels", "a=1,b=2", "--labels", "a=3"], "/nodes/0/labels/a", "3"),
    ] {
        assert_eq!(dump(flags).pointer(pointer), Some(&expected.into()), "{flags:?}");
    }
    for flags in [&["--disable-taint"][..], &["--disable-taint=true"]] {
        assert_eq!(dump(flags).pointer("/nodes/0/taints"), None, "{flags:?}");
    }
    assert!(dump(&["--disable-taint=false"]).pointer("/nodes/0/taints/0").is_some());
    assert_eq!(dump(&["--provider-config", ""]).pointer("/nodes/0/providerConfig"), None);
}

#[test]
fn deprecated_flags_are_accepted_with_a_warning() {
    let flags = [
        "--client-qps=500",
        "--client-burst=1000",
        "--enable-controllers=PVControllers,ServiceControllers",
        "--enable-serviceaccount=false",
        "--enable-node-lease",
        "--enable-node-lease=false",
        "--pod-sync-workers=10",
        "--full-resync-period=1m",
        "--kube-api-qps=5",
        "--kube-api-burst=10",
        "--no-verify-clients",
        "--authentication-token-webhook=true",
        "--trace-exporter=jaeger",
        "--trace-service-name=vk",
        "--trace-tag=a=b",
        "--trace-sample-rate=always",
        "--trace-zpages-addr=:1",
        "--klog.add_dir_header",
        "--klog.alsologtostderr",
        "--klog.log_backtrace_at=:0",
        "--klog.log_dir=/tmp",
        "--klog.log_file=/tmp/x",
        "--klog.log_file_max_size=1800",
        "--klog.logtostderr=true",
        "--klog.one_output",
        "--klog.skip_headers",
        "--klog.skip_log_headers",
        "--klog.stderrthreshold=2",
        "--klog.v=4",
        "--klog.vmodule=a=1",
    ];
    for flag in flags {
        let outcome = vk(&["config", "check", "--provider=mock", flag]).run();
        assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "ok\n"), "{flag}: {outcome:?}");
        let name = flag.split('=').next().unwrap();
        assert!(outcome.stderr.starts_with(&format!("warning: {name} does nothing: ")), "{outcome:?}");
        assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
    }
    let together = vk(&["config", "check", "--provider=mock", "--klog.v", "4", "--client-qps", "5"]).run();
    assert_eq!(together.stderr.lines().count(), 2, "{together:?}");
    assert!(
        vk(&["config", "check", "--provider=mock"])
            .env("JAEGER_USER", "u")
            .run()
            .stderr
            .contains("JAEGER_USER")
    );
}

#[test]
fn a_namespace_is_refused_with_what_to_use_instead() {
    for command in [&["run"][..], &["config", "check"]] {
        let arguments = [command, &["--provider=mock", "--namespace", "team-a"]].concat();
        vk(&arguments)
            .run()
            .refused(2, &[&["namespace:", "`team-a`", "deploy/one-namespace.yaml", "--namespace"]]);
    }
    // The default of the Go original: all namespaces.
    assert_eq!(vk(&["config", "check", "--provider=mock", "--namespace="]).run().ok(), "ok\n");
}

#[test]
fn zero_sync_workers_are_still_an_error() {
    let outcome = vk(&["run", "--provider=mock", "--pod-sync-workers", "0"]).run();
    assert_eq!(outcome.code, 2, "{outcome:?}");
    let errors: Vec<&str> = outcome.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{outcome:?}");
    assert!(errors[0].contains("pod-sync-workers") && errors[0].contains("1 or more"), "{errors:?}");
}

#[test]
fn the_command_without_a_subcommand_accepts_the_flags_of_run() {
    let bare = vk(&["--provider=mock", "--port=0"]).run();
    let run = vk(&["run", "--provider=mock", "--port=0"]).run();
    let before = vk(&["--provider=mock", "--port=0", "run"]).run();
    for outcome in [&bare, &run, &before] {
        outcome.refused(2, &[&["port:", "1 to 65535", "--port"]]);
    }
    assert_eq!(vk(&["--log-level", "debug", "version"]).run().code, 0);
}
