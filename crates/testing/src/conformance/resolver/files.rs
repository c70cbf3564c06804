//! The files of volumes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    ConfigMapProjection, DownwardAPIProjection, KeyToPath, SecretProjection, Volume, VolumeProjection,
};
use vk_provider::{
    Error, Result,
    resolve::{File, FileSet, Origin},
};

use super::{EXPIRES, FixedResolver, login};

const DEFAULT_MODE: i32 = 0o644;

/// The files of a volume of the pod. It has the features that the suite's pods use.
pub(super) fn of_volume(resolver: &FixedResolver, name: &str) -> Result<FileSet> {
    let mut volumes = resolver.pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let volume = volumes.find(|volume| volume.name == name);
    let volume = volume.ok_or_else(|| Error::invalid(format!("resolve volume {name}: no such one")))?;
    let (sources, mode) = sources(volume)?;
    let mut set = FileSet::default();
    for source in sources {
        if let Some(map) = &source.config_map {
            add_keys(&mut set, &resolver.settings(&map.name)?, map.items.as_deref(), mode, Origin::ConfigMap);
        } else if let Some(secret) = &source.secret {
            add_keys(&mut set, &login(&secret.name)?, secret.items.as_deref(), mode, Origin::Secret);
        } else if let Some(downward) = &source.downward_api {
            for item in downward.items.iter().flatten() {
                let name = resolver.pod.metadata.name.clone().unwrap_or_default();
                add(&mut set, &item.path, &name, item.mode.unwrap_or(mode), Origin::Field);
            }
        } else if let Some(token) = &source.service_account_token {
            add(&mut set, &token.path, &resolver.current_token(), mode, Origin::Secret);
            set.expires = Some(EXPIRES);
        }
    }
    Ok(set)
}

/// Replaces every token in a set.
pub(super) fn replace_tokens(set: &mut FileSet, token: &str) {
    for file in set.files.values_mut().filter(|file| file.content.starts_with(b"conformance-token-")) {
        file.content = token.to_owned().into();
    }
}

/// A volume as a projected one, with its default mode.
fn sources(volume: &Volume) -> Result<(Vec<VolumeProjection>, i32)> {
    let (source, mode) = if let Some(map) = volume.config_map.clone() {
        let map_source = ConfigMapProjection { name: map.name, items: map.items, optional: map.optional };
        (VolumeProjection { config_map: Some(map_source), ..VolumeProjection::default() }, map.default_mode)
    } else if let Some(secret) = volume.secret.clone() {
        let name = secret.secret_name.unwrap_or_default();
        let of_secret = SecretProjection { name, items: secret.items, optional: secret.optional };
        (VolumeProjection { secret: Some(of_secret), ..VolumeProjection::default() }, secret.default_mode)
    } else if let Some(downward) = volume.downward_api.clone() {
        let fields = DownwardAPIProjection { items: downward.items };
        (
            VolumeProjection { downward_api: Some(fields), ..VolumeProjection::default() },
            downward.default_mode,
        )
    } else if let Some(projected) = volume.projected.clone() {
        let mode = projected.default_mode.unwrap_or(DEFAULT_MODE);
        return Ok((projected.sources.unwrap_or_default(), mode));
    } else {
        return Err(Error::unsupported(format!("volume {}: no files from the API", volume.name)));
    };
    Ok((vec![source], mode.unwrap_or(DEFAULT_MODE)))
}

fn add_keys(
    set: &mut FileSet,
    data: &BTreeMap<String, String>,
    items: Option<&[KeyToPath]>,
    mode: i32,
    origin: Origin,
) {
    let Some(items) = items else {
        return data.iter().for_each(|(key, value)| add(set, key, value, mode, origin));
    };
    for item in items {
        let value = data.get(&item.key).map(String::as_str).unwrap_or_default();
        add(set, &item.path, value, item.mode.unwrap_or(mode), origin);
    }
}

fn add(set: &mut FileSet, path: &str, content: &str, mode: i32, origin: Origin) {
    set.files.insert(path.to_owned(), File::new(content.to_owned(), mode.cast_unsigned(), origin));
}
