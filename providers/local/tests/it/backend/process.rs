//! Pods as plain processes.

use vk_pod_engine::{
    ContainerBackend,
    backend::{Mount, PortMapping, Propagation},
    snapshot::ContainerState,
};
use vk_provider::error::Kind;
use vk_provider_local::{backend::LocalBackend, isolation::Isolation};

use super::test_backend::{TestBackend, container, log, start, wait_for_exit};

fn mount(container_path: &str, host_path: &str) -> Mount {
    Mount {
        container_path: container_path.to_owned(),
        host_path: host_path.to_owned(),
        image: None,
        image_sub_path: String::new(),
        read_only: true,
        recursive_read_only: false,
        selinux_relabel: false,
        propagation: Propagation::Private,
        uids: vec![],
        gids: vec![],
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs busybox-static: make test"]
async fn a_plain_process_runs_from_the_image_and_finds_its_volumes_in_the_environment() {
    let test_backend = TestBackend::bare(Isolation::Process);
    let backend = test_backend.open().await;
    let config = test_backend.sandbox("plain");
    let sandbox = backend.run_sandbox(&config).await.unwrap();
    assert_eq!(backend.sandbox(&sandbox).await.unwrap().ips.len(), 1, "the node's address");
    let mut main = container("main", "echo $GREETING $VK_VOLUME_ETC_WEB_CONF $VK_MOUNT_0; exit 4");
    main.mounts = vec![mount("/etc/web.conf", "/somewhere")];
    let id = start(&backend, &sandbox, &main, &config).await;
    let over = wait_for_exit(&backend, &id).await;
    assert_eq!((over.exit_code, log(&over).as_str()), (4, "hello /somewhere /somewhere\n"));
    let id = start(&backend, &sandbox, &container("stay", "while :; do sleep 1; done"), &config).await;
    backend.stop_container(&id, std::time::Duration::ZERO).await.unwrap();
    assert_eq!(backend.container(&id).await.unwrap().state, ContainerState::Exited);
    backend.remove_sandbox(&sandbox).await.unwrap();
    assert_eq!(test_backend.leftovers(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs busybox-static: make test"]
async fn unsupported_settings_are_rejected_with_a_reason() {
    let test_backend = TestBackend::bare(Isolation::Process);
    let backend = test_backend.open().await;
    let mut ports = test_backend.sandbox("ports");
    ports.ports = vec![PortMapping {
        protocol: vk_pod_engine::backend::Protocol::Tcp,
        container_port: 80,
        host_port: 8080,
        host_ip: String::new(),
    }];
    let error = backend.run_sandbox(&ports).await.unwrap_err();
    assert_eq!(*error.kind(), Kind::Unsupported);
    assert!(error.message().starts_with("hostPort 8080 is not supported"), "{error}");
    let config = test_backend.sandbox("rights");
    let sandbox = backend.run_sandbox(&config).await.unwrap();
    let mut privileged = container("main", "true");
    privileged.security.privileged = true;
    let error = backend.create_container(&sandbox, &privileged, &config).await.unwrap_err();
    assert!(error.message().starts_with("privileged of container \"main\" is not supported"), "{error}");
    backend.remove_sandbox(&sandbox).await.unwrap();
    assert_eq!(test_backend.leftovers(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs busybox-static: make test"]
async fn the_host_image_is_only_available_if_the_operator_allows_it() {
    let test_backend = TestBackend::bare(Isolation::Process);
    let mut settings = test_backend.settings();
    let refusing = LocalBackend::open(settings.clone()).await.unwrap();
    assert_eq!(refusing.image("host", "").await.unwrap(), None);
    drop(refusing);
    settings.host_image = true;
    let backend = LocalBackend::open(settings).await.unwrap();
    assert!(backend.image("host", "").await.unwrap().is_some());
    let config = test_backend.sandbox("host");
    let sandbox = backend.run_sandbox(&config).await.unwrap();
    let mut main = container("main", "test -e /proc/version && echo here");
    main.image = "host".to_owned();
    let id = start(&backend, &sandbox, &main, &config).await;
    assert_eq!(log(&wait_for_exit(&backend, &id).await), "here\n");
    backend.remove_sandbox(&sandbox).await.unwrap();
}
