//! `virtual-kubelet image import|list|pull|rm`: manages the images of the provider `local`.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, anyhow};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use tokio::task::spawn_blocking;
use vk_provider_local::{
    config::Settings,
    image::{self, Store, StoredImage},
};
use vk_supervisor::Supervisor;

use super::{
    Failure, Flags, load,
    output::{print, print_diagnostic, table},
};
use crate::{
    Registry,
    config::{Layer, Problem},
    run::{address, context},
};

/// The provider whose images these are.
const PROVIDER: &str = "local";

/// Manages the images on this machine.
#[derive(Debug, Args)]
pub(super) struct Image {
    #[command(subcommand)]
    subcommand: ImageCommand,
}

#[derive(Debug, Subcommand)]
enum ImageCommand {
    /// Import images from an OCI layout or `docker save` archive (tar, tar.gz or tar.zst)
    Import(Import),
    /// List the images
    #[command(visible_alias = "ls")]
    List(List),
    /// Pull images without credentials
    Pull(ImageNames),
    /// Remove images by name or ID
    Rm(ImageNames),
}

#[derive(Debug, Args)]
struct Import {
    /// The archive; `-` is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Name of the image, instead of the names in the archive; may be repeated
    #[arg(long = "name", value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    flags: Flags,
}

#[derive(Debug, Args)]
struct List {
    /// Output format
    #[arg(long, short, value_name = "FORMAT", default_value = "text")]
    output: Output,
    #[command(flatten)]
    flags: Flags,
}

#[derive(Debug, Args)]
struct ImageNames {
    /// Names or IDs of images
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    #[command(flatten)]
    flags: Flags,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    Text,
    Json,
}

// === impl Image ===

impl Image {
    pub(super) async fn execute(self, before: Flags, registry: &Registry) -> Result<(), Failure> {
        match self.subcommand {
            ImageCommand::Import(args) => {
                let store = open(before.overlaid_with(args.flags), registry).await?;
                Ok(import(store, args.file, args.names).await?)
            }
            ImageCommand::List(args) => {
                let store = open(before.overlaid_with(args.flags), registry).await?;
                let images = store.list().context("list images")?;
                Ok(print(&match args.output {
                    Output::Text => text(&images),
                    Output::Json => format!("{:#}\n", json(&images)),
                })?)
            }
            ImageCommand::Pull(args) => {
                let store = open(before.overlaid_with(args.flags), registry).await?;
                Ok(pull(&store, &args.names).await?)
            }
            ImageCommand::Rm(args) => {
                let store = open(before.overlaid_with(args.flags), registry).await?;
                Ok(remove(&store, args.names).await?)
            }
        }
    }
}

/// Opens the image store of the first node with the provider `local`.
async fn open(flags: Flags, registry: &Registry) -> Result<Arc<Store>, Failure> {
    let (base, _) = Layer::from_value(json!({ "provider": PROVIDER }));
    let config = load(&flags, base, None, registry)?;
    let Some(node) = config.nodes.iter().find(|node| node.provider == PROVIDER) else {
        let message = "no configured node has the provider local, whose images this command manages";
        return Err(Failure::Configuration(vec![Problem::new("provider", message)]));
    };
    let wrong = |error: vk_provider::Error| {
        Failure::Configuration(vec![Problem::new("providerConfig", error.message().to_owned())])
    };
    let settings = Settings::read(&node.provider_config).map_err(wrong)?;
    let context = context(node, address::internal_ip(""), &config.state_dir, Supervisor::new());
    let directory = settings.images(&context);
    let settings_of_store =
        image::Settings { plain_http: settings.insecure_registries, ..image::Settings::default() };
    let shown = directory.display().to_string();
    let opened = spawn_blocking(move || Store::open(&directory, settings_of_store))
        .await
        .context("open the image store")?;
    Ok(opened.with_context(|| {
        format!("open the image store {shown}; run this as the user of the node, or set --state-dir")
    })?)
}

async fn import(store: Arc<Store>, file: PathBuf, names: Vec<String>) -> anyhow::Result<()> {
    let from = if file == Path::new("-") { "standard input".to_owned() } else { file.display().to_string() };
    print_diagnostic("importing", &from);
    let imported = spawn_blocking(move || -> anyhow::Result<Vec<StoredImage>> {
        let archive: Box<dyn Read> = if file == Path::new("-") {
            Box::new(io::stdin())
        } else {
            Box::new(File::open(&file).with_context(|| format!("cannot open {}", file.display()))?)
        };
        Ok(store.import(archive, &names)?)
    })
    .await?
    .with_context(|| format!("cannot import {from}"))?;
    for image in &imported {
        print(&format!("{}\n", names_of(image).join(" ")))?;
    }
    Ok(())
}

async fn pull(store: &Arc<Store>, names: &[String]) -> anyhow::Result<()> {
    for name in names {
        print_diagnostic("pulling", name);
        let pulled = store.pull(name, None).await.with_context(|| format!("cannot pull {name}"))?;
        print(&format!("{}\n", pulled.reference))?;
    }
    Ok(())
}

async fn remove(store: &Arc<Store>, names: Vec<String>) -> anyhow::Result<()> {
    let mut missing = Vec::new();
    for name in names {
        let (holder, wanted) = (Arc::clone(store), name.clone());
        let removed = spawn_blocking(move || holder.remove(&wanted))
            .await?
            .with_context(|| format!("cannot remove {name}"))?;
        if removed.tags.is_empty() && removed.image.is_none() {
            missing.push(name);
            continue;
        }
        for gone in removed.tags.iter().chain(&removed.image) {
            print(&format!("{gone}\n"))?;
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(anyhow!("no such image: {}; `virtual-kubelet image list` lists the images", missing.join(", ")))
}

/// The tags of an image, else its digests, else its ID.
fn names_of(image: &StoredImage) -> Vec<String> {
    let named = [&image.tags, &image.digests].into_iter().find(|names| !names.is_empty());
    named.cloned().unwrap_or_else(|| vec![image.id.clone()])
}

fn text(images: &[StoredImage]) -> String {
    let mut rows: Vec<[String; 3]> = images
        .iter()
        .flat_map(|image| {
            let id: String = image.id.trim_start_matches("sha256:").chars().take(12).collect();
            names_of(image).into_iter().map(move |name| [name, id.clone(), format_size(image.size)])
        })
        .collect();
    rows.sort();
    table(["NAME", "ID", "SIZE"], &rows)
}

fn json(images: &[StoredImage]) -> serde_json::Value {
    let rows = images.iter().map(
        |image| json!({ "id": image.id, "tags": image.tags, "digests": image.digests, "size": image.size }),
    );
    rows.collect()
}

/// Formats a size with binary units.
fn format_size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1 << 10 {
        return format!("{bytes} B");
    }
    let mut unit = 0;
    // In tenths, rounded down.
    let mut tenths = bytes.saturating_mul(10) >> 10;
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths >>= 10;
        unit += 1;
    }
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_900_000, "1.8 MiB"),
            (5 << 30, "5.0 GiB"),
            (3 << 50, "3072.0 TiB"),
        ] {
            assert_eq!(format_size(bytes), text);
        }
    }
}
