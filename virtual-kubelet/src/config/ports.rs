//! Assigns a port to every node.

use std::{collections::BTreeMap, net::IpAddr};

use super::{Listen, Problem, effective::Node};

/// A node that may not have a port yet, with its key for problems.
pub(super) struct NodeDraft {
    pub(super) node: Node,
    pub(super) port: Option<u16>,
    pub(super) key: String,
}

/// Assigns ports: first the configured ones, then free ones from the base up.
pub(super) fn assign(
    drafts: Vec<NodeDraft>,
    base: u16,
    admin: Option<Listen>,
    problems: &mut Vec<Problem>,
) -> Vec<Node> {
    let mut taken: BTreeMap<u16, Vec<(Option<IpAddr>, String)>> = BTreeMap::new();
    if let Some(admin) = admin.filter(|admin| admin.port > 0) {
        taken.entry(admin.port).or_default().push((admin.address, "metricsAddr".into()));
    }
    let holder =
        |taken: &BTreeMap<u16, Vec<(Option<IpAddr>, String)>>, port: u16, address: Option<IpAddr>| {
            let others = taken.get(&port)?;
            others.iter().find(|(other, _)| overlap(*other, address)).map(|(_, name)| name.clone())
        };
    let alone = drafts.len() == 1;
    for draft in &drafts {
        // A single node gets the configured port even if it is taken.
        let Some(port) = draft.port.or_else(|| alone.then_some(base)) else { continue };
        let Node { name, address, .. } = &draft.node;
        if let Some(other) = holder(&taken, port, *address) {
            let message = format!("port {port} of node `{name}` is already used by {other}: write another");
            problems.push(Problem::new(format!("{}port", draft.key), message));
        }
        taken.entry(port).or_default().push((*address, format!("node `{name}`")));
    }
    let mut next: BTreeMap<Option<IpAddr>, u32> = BTreeMap::new();
    let mut nodes = Vec::new();
    for NodeDraft { node, port, .. } in drafts {
        let port = port.or_else(|| alone.then_some(base)).or_else(|| {
            let from = next.entry(node.address).or_insert_with(|| u32::from(base));
            loop {
                let port = u16::try_from(*from).ok()?;
                *from += 1;
                if holder(&taken, port, node.address).is_none() {
                    taken.entry(port).or_default().push((node.address, format!("node `{}`", node.name)));
                    return Some(port);
                }
            }
        });
        let Some(port) = port else {
            let message =
                format!("no port from {base} to 65535 is left for node `{}`: write a lower one", node.name);
            problems.push(Problem::new("port", message));
            break;
        };
        nodes.push(Node { port, ..node });
    }
    nodes
}

/// Whether two listeners on one port would conflict.
fn overlap(a: Option<IpAddr>, b: Option<IpAddr>) -> bool {
    let all = |address: Option<IpAddr>| address.is_none_or(|ip| ip.is_unspecified());
    all(a) || all(b) || a == b
}
