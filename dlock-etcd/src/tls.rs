//! Certificates, and what is encrypted with them.

use std::sync::Arc;

use dlock_core::spi::{Host, Url};
use dlock_core::{Error, Result};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::channel::Tls;
use crate::failure::invalid;

/// Which to trust, in place of those of the system; and which to show.
#[derive(Clone, Default)]
pub(crate) struct Certificates {
    pub(crate) root: Option<Pem>,
    pub(crate) client: Option<(Pem, Pem)>,
}

/// A text in PEM, and where it is from.
#[derive(Clone)]
pub(crate) struct Pem {
    from: String,
    text: Vec<u8>,
}

impl Pem {
    pub(crate) fn new(from: impl Into<String>, text: impl Into<Vec<u8>>) -> Self {
        let (from, text) = (from.into(), text.into());
        Self { from, text }
    }

    fn wrong(&self, how: &str) -> Error {
        invalid(format!("{} {how}", self.from))
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>> {
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.text).collect();
        match read.map_err(|e| self.wrong("is not PEM").with_source(e))? {
            none if none.is_empty() => Err(self.wrong("has no certificate in PEM")),
            some => Ok(some),
        }
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>> {
        let read = PrivateKeyDer::from_pem_slice(&self.text);
        read.map_err(|e| self.wrong("has no private key in PEM").with_source(e))
    }
}

impl Certificates {
    /// Takes those that a URL names.
    pub(crate) fn take(tls: &mut Option<Self>, url: &mut Url) -> Result<()> {
        // Before the files are read: a missing key is the clearer error.
        let mut given = url.clone();
        let (cert, key) = (given.take::<String>("cert")?, given.take("key")?);
        Url::both(("cert", cert), ("key", key))?;
        let mut pem = |key: &'static str| -> Result<Option<Pem>> {
            let read = |(path, text): (std::path::PathBuf, _)| {
                Pem::new(format!("the file {} of the URL's `{key}`", path.display()), text)
            };
            Ok(url.take_file(key)?.map(read))
        };
        let (root, client) = (pem("ca")?, pem("cert")?.zip(pem("key")?));
        if root.is_some() || client.is_some() {
            let tls = tls.as_mut();
            *tls.ok_or_else(|| invalid("certificates need TLS: use `etcds://`"))? = Self { root, client };
        }
        Ok(())
    }

    /// What a connection to that member is encrypted by.
    pub(crate) fn to(&self, host: &Host) -> Result<Tls> {
        let unnamed = |e| invalid(format!("TLS cannot name the member {host}")).with_source(e);
        let name = ServerName::try_from(host.name.clone()).map_err(unnamed)?;
        let mut roots = RootCertStore::empty();
        if let Some(pem) = &self.root {
            for one in pem.certificates()? {
                let wrong = |e| pem.wrong("has a certificate that cannot be read").with_source(e);
                roots.add(one).map_err(wrong)?;
            }
        } else {
            let mut system = rustls_native_certs::load_native_certs();
            if roots.add_parsable_certificates(system.certs).0 == 0 {
                let e = invalid("the system has no certificate to trust: name one");
                return Err(system.errors.pop().map_or(e.clone(), |why| e.with_source(why)));
            }
        }
        let chosen = CryptoProvider::get_default().cloned();
        let provider = chosen.unwrap_or_else(|| Arc::new(ring::default_provider()));
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| invalid("the chosen provider of cryptography is of no use").with_source(e))?
            .with_root_certificates(roots);
        let mut config = match &self.client {
            Some((pem, key)) => config
                .with_client_auth_cert(pem.certificates()?, key.key()?)
                .map_err(|e| pem.wrong("does not go with its key").with_source(e))?,
            None => config.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok((Arc::new(config).into(), name))
    }
}
