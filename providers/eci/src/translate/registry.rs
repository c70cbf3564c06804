//! Registries of images.

use secrecy::ExposeSecret as _;
use vk_container_group::{
    backend::ResolvedPod,
    plan::{Diagnostics, registry},
};

use crate::api::{Parameters, flatten};

/// What the servers of the vendor's registries end with: `NAME-registry.REGION.cr.aliyuncs.com`.
const OWN_DOMAIN: &str = ".cr.aliyuncs.com";
const OWN_PREFIXES: [&str; 2] = ["-registry-vpc", "-registry"];

/// Writes the logins for the registries of the pod's images. The vendor's own registries need no password.
pub(super) fn write(pod: &ResolvedPod, out: &mut Parameters, diagnostics: &mut Diagnostics) {
    let logins = registry::logins(pod, |server| own(server).is_some(), diagnostics);
    for (at, login) in logins.passwords.iter().enumerate() {
        let set = |name: &str| flatten("ImageRegistryCredential", at, name);
        out.set(set("Server"), &login.server);
        out.set_secret(set("UserName"), &login.username);
        out.set_secret(set("Password"), login.password.expose_secret());
    }
    let own = logins.own.iter().filter_map(|server| Some((server, own(server)?)));
    for (at, (server, (instance, region))) in own.enumerate() {
        out.set(flatten("AcrRegistryInfo", at, "InstanceName"), instance);
        out.set(flatten("AcrRegistryInfo", at, "RegionId"), region);
        out.set_list(&flatten("AcrRegistryInfo", at, "Domain"), [server]);
    }
}

/// The instance and the region of a registry of the vendor.
fn own(server: &str) -> Option<(&str, &str)> {
    let (name, region) = server.strip_suffix(OWN_DOMAIN)?.split_once('.')?;
    let instance = OWN_PREFIXES.iter().find_map(|suffix| name.strip_suffix(suffix))?;
    Some((instance, region)).filter(|(instance, region)| !instance.is_empty() && !region.contains('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vendors_own_registries_are_known_by_their_domain() {
        let expected = Some(("shop", "cn-hangzhou"));
        assert_eq!(own("shop-registry.cn-hangzhou.cr.aliyuncs.com"), expected);
        assert_eq!(own("shop-registry-vpc.cn-hangzhou.cr.aliyuncs.com"), expected);
        for other in
            ["registry.example", "cr.aliyuncs.com", "-registry.x.cr.aliyuncs.com", "shop.x.cr.aliyuncs.com"]
        {
            assert_eq!(own(other), None, "{other}");
        }
    }
}
