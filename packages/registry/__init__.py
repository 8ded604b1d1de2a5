"""Packages in remote stores: releases, the index of a name, publishing and installing."""
