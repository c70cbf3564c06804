//! Tests of address management.

use std::collections::BTreeMap;

use proptest::prelude::*;
use vk_pod_engine::backend::Protocol;

use super::*;

fn small() -> Subnet {
    "10.0.0.0/29".parse().unwrap()
}

fn address(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, last)
}

#[test]
fn an_exhausted_subnet_is_reported_with_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let mut addresses = AddressPool::open(dir.path(), small()).unwrap();
    for (n, last) in (2..=6).enumerate() {
        assert_eq!(addresses.reserve(&n.to_string(), &[]).unwrap().address, address(last));
    }
    assert_eq!(
        addresses.reserve("one-more", &[]).unwrap_err().to_string(),
        "no free address in 10.0.0.0/29: 5 pods have one; configure a larger subnet for more pods"
    );
    addresses.free("2").unwrap();
    assert_eq!(addresses.reserve("one-more", &[]).unwrap().address, address(4));
}

#[test]
fn a_freed_address_is_reused_last_even_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut addresses = AddressPool::open(dir.path(), small()).unwrap();
    assert_eq!(addresses.reserve("a", &[]).unwrap().address, address(2));
    addresses.free("a").unwrap();
    let mut addresses = AddressPool::open(dir.path(), small()).unwrap();
    assert_eq!(addresses.reserve("b", &[]).unwrap().address, address(3));
}

#[test]
fn a_sandbox_keeps_its_address_when_its_ports_change() {
    let dir = tempfile::tempdir().unwrap();
    let mut addresses = AddressPool::open(dir.path(), small()).unwrap();
    let before = addresses.reserve("a", &[]).unwrap();
    let port =
        PortMapping { protocol: Protocol::Udp, container_port: 53, host_port: 5353, host_ip: String::new() };
    let after = addresses.reserve("a", std::slice::from_ref(&port)).unwrap();
    assert_eq!((after.address, after.serial), (before.address, before.serial));
    let again = AddressPool::open(dir.path(), small()).unwrap();
    assert_eq!(again.get("a").unwrap().ports, [port]);
}

#[test]
fn an_address_of_another_subnet_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let other: Subnet = "10.9.0.0/24".parse().unwrap();
    AddressPool::open(dir.path(), other).unwrap().reserve("a", &[]).unwrap();
    let mut addresses = AddressPool::open(dir.path(), small()).unwrap();
    assert_eq!(addresses.reserve("a", &[]).unwrap().address, address(2));
}

#[test]
fn incomplete_and_malformed_files_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let mut addresses = AddressPool::open(dir.path(), small()).unwrap();
    addresses.reserve("a", &[]).unwrap();
    fs::write(dir.path().join("sandboxes/b.new"), "{").unwrap();
    fs::write(dir.path().join("sandboxes/c.json"), "{").unwrap();
    let addresses = AddressPool::open(dir.path(), small()).unwrap();
    assert_eq!(addresses.attached().map(|attached| attached.sandbox.as_str()).collect::<Vec<_>>(), ["a"]);
    assert!(!dir.path().join("sandboxes/b.new").exists());
}

#[test]
fn a_name_that_leaves_the_directory_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let mut addresses = AddressPool::open(dir.path(), small()).unwrap();
    for name in ["", "..", ".hidden", "a/b", "../a", "a\0", &"x".repeat(201)] {
        assert!(matches!(addresses.reserve(name, &[]), Err(Error::InvalidSandboxId(_))), "{name:?}");
    }
}

#[derive(Clone, Debug)]
enum Act {
    Reserve(u8),
    Free(u8),
    Reopen,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..9u8).prop_map(Act::Reserve),
        3 => (0..9u8).prop_map(Act::Free),
        1 => Just(Act::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// In any sequence: no address is assigned twice or outside of the subnet, none is refused while one is free,
    /// everything survives a restart, and the address freed last is reused only if no other is free.
    #[test]
    fn addresses_are_assigned_once_and_survive_restarts(acts in prop::collection::vec(act(), 1..60)) {
        let dir = tempfile::tempdir().unwrap();
        let mut addresses = AddressPool::open(dir.path(), small()).unwrap();
        let mut model: BTreeMap<String, Ipv4Addr> = BTreeMap::new();
        let mut freed = None;
        for act in acts {
            match act {
                Act::Reserve(n) => {
                    let name = n.to_string();
                    let had = model.get(&name).copied();
                    match addresses.reserve(&name, &[]) {
                        Ok(given) => {
                            prop_assert!((2..=6).any(|last| address(last) == given.address));
                            if let Some(had) = had {
                                prop_assert_eq!(had, given.address);
                            } else {
                                prop_assert!(!model.values().any(|taken| *taken == given.address));
                                prop_assert!(freed != Some(given.address) || model.len() == 4);
                            }
                            model.insert(name, given.address);
                        }
                        Err(error) => {
                            let exhausted = matches!(error, Error::Exhausted { used: 5, .. });
                            prop_assert!(exhausted, "{}", error);
                            prop_assert!(had.is_none() && model.len() == 5);
                        }
                    }
                }
                Act::Free(n) => {
                    addresses.free(&n.to_string()).unwrap();
                    // This only holds for the address assigned last: the search continues after it.
                    let last = addresses.last;
                    freed = model.remove(&n.to_string()).filter(|freed| Some(*freed) == last).or(freed);
                    freed = freed.filter(|freed| Some(*freed) == last);
                }
                Act::Reopen => addresses = AddressPool::open(dir.path(), small()).unwrap(),
            }
            let found: BTreeMap<String, Ipv4Addr> =
                addresses.attached().map(|attached| (attached.sandbox.clone(), attached.address)).collect();
            prop_assert_eq!(&found, &model);
        }
    }
}
