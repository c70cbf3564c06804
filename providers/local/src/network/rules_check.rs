//! Puts the rules back when somebody else removes them, as `nft flush ruleset` or the restart of a firewall does.

use std::{
    path::Path,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use super::{
    Error, Inner, Network, bridge,
    link::RouteSocket,
    nft::{self, Family},
    rules,
};

/// How often the rules are checked without a notification.
const PERIOD: Duration = Duration::from_secs(2);
/// The least time between two checks: transactions come in groups.
const PAUSE: Duration = Duration::from_millis(100);

impl Network {
    /// Puts the rules back when somebody else removes them. Never returns.
    ///
    /// It has a thread of its own, which waits nearly always: in the pool of blocking threads it would keep one of them from
    /// everybody else on a machine without room for more.
    pub async fn maintain_rules(&self) {
        loop {
            // The thread ends, at the latest after a period, when this future is dropped.
            let (stop, stopped) = mpsc::channel();
            let inner = self.0.clone();
            let thread = thread::Builder::new().name("vk-nftables".to_owned());
            match thread.spawn(move || inner.maintain_rules(&stopped)) {
                Ok(_) => std::future::pending::<()>().await,
                Err(error) => {
                    tracing::debug!(%error, "cannot start the thread that checks the rules of the pod network");
                }
            }
            drop(stop);
            tokio::time::sleep(PERIOD).await;
        }
    }
}

impl Inner {
    fn maintain_rules(&self, stopped: &mpsc::Receiver<()>) {
        let changes = nft::changes().inspect_err(|error| {
            tracing::debug!(%error, "changes of nftables are not announced: the rules are checked periodically");
        });
        loop {
            if let Err(error) = self.check_rules() {
                tracing::warn!(bridge = self.bridge, %error, "checking the rules of the pod network failed");
            }
            if stopped.recv_timeout(PAUSE) == Err(RecvTimeoutError::Disconnected) {
                return;
            }
            let waited = changes.as_ref().is_ok_and(|changes| changes.wait(PERIOD).is_ok());
            if !waited && stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Disconnected) {
                return;
            }
        }
    }
}

impl Inner {
    /// Checks that all rules of this network exist, and writes those that do not.
    pub(super) fn check_rules(&self) -> Result<(), Error> {
        let generation = nft::generation().map_err(Error::kernel("read the generation of nftables"))?;
        if *self.checked_generation.lock() == Some(generation) {
            return Ok(());
        }
        let socket = RouteSocket::open().map_err(Error::kernel("open a netlink socket"))?;
        let links = socket.links().map_err(Error::kernel("list links"))?;
        let Some(bridge) = links.iter().find(|link| link.name == self.bridge).map(|link| link.index) else {
            // The network is closed, or will be created again by the next attach.
            return Ok(());
        };
        self.check_chains()?;
        let mut complete = true;
        if self.source_check_error.is_none() {
            let counts = count(Family::Netdev)?;
            let attached: Vec<_> = self.addresses.lock().attached().cloned().collect();
            for attached in attached {
                let name = self.host_interface(&attached.sandbox);
                let exists = links.iter().any(|link| link.name == name && link.master == Some(bridge));
                let mac_address = bridge::mac_address(attached.address);
                let chain = rules::source_check(&name, attached.address, mac_address);
                if exists && !nft::has_all(&counts, &name, &[chain]) {
                    tracing::warn!(
                        sandbox = attached.sandbox,
                        "the check of what a pod sends was removed; it is restored"
                    );
                    // It may be detached at this moment.
                    complete &= self.check_source(&attached).inspect_err(|error| {
                        tracing::debug!(sandbox = attached.sandbox, %error, "restoring the check of what a pod sends failed");
                    }).is_ok();
                }
            }
        }
        if !complete {
            return Ok(());
        }
        // What was written just now is checked once more.
        *self.checked_generation.lock() = Some(generation);
        Ok(())
    }

    pub(super) fn check_chains(&self) -> Result<(), Error> {
        if self.nat_error.is_some() {
            return Ok(());
        }
        let mut applied = self.applied.lock();
        if applied.closed || !Path::new("/proc/sys/net/ipv4/conf").join(&self.bridge).exists() {
            // Since its bridge was found. Rules without a bridge would masquerade what the pods of the next network with this subnet send
            // to each other.
            return Ok(());
        }
        let (counts, chains) = (count(Family::Ip)?, self.chains().1);
        if nft::has_all(&counts, &self.bridge, &chains) {
            return Ok(());
        }
        // The others may only be older than the addresses.
        if !chains
            .iter()
            .filter(|chain| chain.name == rules::GUARD)
            .all(|guard| nft::has_all(&counts, &self.bridge, std::slice::from_ref(guard)))
        {
            tracing::warn!(bridge = self.bridge, "rules of the pod network were removed; they are restored");
            // First, because it is only safe while the guard exists.
            bridge::route_loopback(&self.bridge, false)?;
        }
        self.write_rules(&mut applied)
    }
}

fn count(family: Family) -> Result<nft::RuleCounts, Error> {
    nft::rule_counts(family).map_err(Error::kernel("list the rules of nftables"))
}
