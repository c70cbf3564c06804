use serde_json::{Value, json};

use super::*;

fn service(namespace: &str, name: &str, spec: Value) -> Arc<Service> {
    let mut service =
        Service { spec: Some(serde_json::from_value(spec).expect("a spec")), ..Service::default() };
    service.metadata.namespace = Some(namespace.to_owned());
    service.metadata.name = Some(name.to_owned());
    Arc::new(service)
}

fn named(services: &[Arc<Service>], namespace: &str, links: bool) -> Vec<(String, String)> {
    variables(services, namespace, links).into_iter().collect()
}

fn pairs(wanted: &[(&str, &str)]) -> Vec<(String, String)> {
    wanted.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn a_service_has_host_port_and_link_variables() {
    let spec = json!({"clusterIP": "10.0.0.7", "ports": [
        {"name": "http", "port": 80},
        {"name": "dns-udp", "port": 53, "protocol": "UDP"},
    ]});
    let wanted = [
        ("MY_SHOP_PORT", "tcp://10.0.0.7:80"),
        ("MY_SHOP_PORT_53_UDP", "udp://10.0.0.7:53"),
        ("MY_SHOP_PORT_53_UDP_ADDR", "10.0.0.7"),
        ("MY_SHOP_PORT_53_UDP_PORT", "53"),
        ("MY_SHOP_PORT_53_UDP_PROTO", "udp"),
        ("MY_SHOP_PORT_80_TCP", "tcp://10.0.0.7:80"),
        ("MY_SHOP_PORT_80_TCP_ADDR", "10.0.0.7"),
        ("MY_SHOP_PORT_80_TCP_PORT", "80"),
        ("MY_SHOP_PORT_80_TCP_PROTO", "tcp"),
        ("MY_SHOP_SERVICE_HOST", "10.0.0.7"),
        ("MY_SHOP_SERVICE_PORT", "80"),
        ("MY_SHOP_SERVICE_PORT_DNS_UDP", "53"),
        ("MY_SHOP_SERVICE_PORT_HTTP", "80"),
    ];
    assert_eq!(named(&[service("shop", "my-shop", spec)], "shop", true), pairs(&wanted));
}

#[test]
fn an_address_of_ipv6_stands_in_brackets_in_urls_only() {
    let spec = json!({"clusterIP": "fd00::7", "ports": [{"port": 80, "protocol": "SCTP"}]});
    let wanted = [
        ("S_PORT", "sctp://[fd00::7]:80"),
        ("S_PORT_80_SCTP", "sctp://[fd00::7]:80"),
        ("S_PORT_80_SCTP_ADDR", "fd00::7"),
        ("S_PORT_80_SCTP_PORT", "80"),
        ("S_PORT_80_SCTP_PROTO", "sctp"),
        ("S_SERVICE_HOST", "fd00::7"),
        ("S_SERVICE_PORT", "80"),
    ];
    assert_eq!(named(&[service("shop", "s", spec)], "shop", true), pairs(&wanted));
}

#[test]
fn services_without_a_cluster_ip_have_no_variables() {
    let ports = json!([{"port": 80}]);
    let services = [
        service("shop", "headless", json!({"clusterIP": "None", "ports": ports})),
        service("shop", "empty", json!({"clusterIP": "", "ports": ports})),
        service("shop", "external", json!({"type": "ExternalName", "externalName": "example.com"})),
    ];
    assert_eq!(named(&services, "shop", true), []);
}

#[test]
fn a_service_without_ports_only_has_a_host_variable() {
    let spec = json!({"clusterIP": "10.0.0.7"});
    let wanted = pairs(&[("S_SERVICE_HOST", "10.0.0.7")]);
    assert_eq!(named(&[service("shop", "s", spec)], "shop", true), wanted);
}

#[test]
fn the_kubernetes_service_always_has_variables_and_the_pods_namespace_wins() {
    let spec = |ip: &str| json!({"clusterIP": ip, "ports": [{"port": 443}]});
    let host = |services: &[Arc<Service>], links| {
        variables(services, "shop", links).get("KUBERNETES_SERVICE_HOST").cloned()
    };
    let services = [
        service("default", "kubernetes", spec("10.0.0.1")),
        service("shop", "kubernetes", spec("10.0.0.2")),
        service("other", "kubernetes", spec("10.0.0.3")),
    ];
    let backwards: Vec<_> = services.iter().rev().cloned().collect();
    for services in [&services[..], &backwards] {
        assert_eq!(host(services, true).as_deref(), Some("10.0.0.2"));
        assert_eq!(host(services, false).as_deref(), Some("10.0.0.1"));
    }
}

#[test]
fn conflicting_services_are_resolved_independent_of_order() {
    let spec = |ip: &str| json!({"clusterIP": ip, "ports": [{"port": 80}]});
    let services = [service("shop", "a", spec("10.0.0.1")), service("shop", "a-service", spec("10.0.0.2"))];
    let backwards: Vec<_> = services.iter().rev().cloned().collect();
    let claimed = |services: &[Arc<Service>]| variables(services, "shop", true)["A_SERVICE_PORT"].clone();
    assert_eq!(claimed(&services), "tcp://10.0.0.2:80");
    assert_eq!(claimed(&backwards), "tcp://10.0.0.2:80");
}
